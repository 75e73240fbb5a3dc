// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.24;

// For tests only, and not dstack's code: written from its published interface (names, signatures,
// ERC-165 ids, storage slot and order of decisions), so that tests need no other repository.

import {AppBootInfo, IAppAuth} from "../OwnersAppAuth.sol";

/// Decides as dstack's KMS contract does: registered, image, code, then whatever the app says.
contract KmsStandIn {
    address public immutable owner = msg.sender;
    mapping(address => bool) public registeredApps;
    mapping(bytes32 => bool) public allowedOsImages;

    function registerApp(address app) external {
        require(app != address(0), "Invalid app ID");
        registeredApps[app] = true;
    }

    function addOsImageHash(bytes32 image) external {
        require(msg.sender == owner, "Not the owner");
        allowedOsImages[image] = true;
    }

    function isAppAllowed(AppBootInfo calldata info) external view returns (bool, string memory) {
        if (!registeredApps[info.appId]) return (false, "App not registered");
        if (!allowedOsImages[info.osImageHash]) return (false, "OS image is not allowed");
        if (info.appId.code.length == 0) return (false, "App not deployed or invalid address");
        return IAppAuth(info.appId).isAppAllowed(info);
    }
}

/// Stores and decides as dstack's app contract does: compose hashes in storage slot 0, one owner.
contract AppStandIn is IAppAuth {
    mapping(bytes32 => bool) public allowedComposeHashes;
    address public owner;
    bool public upgradesDisabled;
    bool public constant allowAnyDevice = true;
    bool public constant requireTcbUpToDate = true;

    error OwnableUnauthorizedAccount(address account);

    event ComposeHashAdded(bytes32 composeHash);
    event ComposeHashRemoved(bytes32 composeHash);

    modifier onlyOwner() {
        if (msg.sender != owner) revert OwnableUnauthorizedAccount(msg.sender);
        _;
    }

    function initialize(address owner_) external {
        require(owner == address(0), "Initialized before");
        owner = owner_;
    }

    function addComposeHash(bytes32 composeHash) external onlyOwner {
        allowedComposeHashes[composeHash] = true;
        emit ComposeHashAdded(composeHash);
    }

    function removeComposeHash(bytes32 composeHash) external onlyOwner {
        allowedComposeHashes[composeHash] = false;
        emit ComposeHashRemoved(composeHash);
    }

    function disableUpgrades() external onlyOwner {
        upgradesDisabled = true;
    }

    function upgradeToAndCall(address implementation, bytes calldata) external onlyOwner {
        require(!upgradesDisabled, "Upgrades are disabled");
        assembly {
            sstore(0x360894a13ba1a3210667c828492db98dca3e2076cc3735a920a3ca505d382bbc, implementation)
        }
    }

    function supportsInterface(bytes4 id) external pure returns (bool) {
        return id == type(IAppAuth).interfaceId || id == 0x01ffc9a7;
    }

    function isAppAllowed(AppBootInfo calldata info) external view returns (bool, string memory) {
        if (keccak256(bytes(info.tcbStatus)) != keccak256("UpToDate")) {
            return (false, "TCB status is not up to date");
        }
        if (!allowedComposeHashes[info.composeHash]) return (false, "Compose hash not allowed");
        return (true, "");
    }
}

/// An ERC-1967 proxy, as dstack's apps are deployed behind.
contract ProxyStandIn {
    constructor(address implementation, bytes memory call) {
        assembly {
            sstore(0x360894a13ba1a3210667c828492db98dca3e2076cc3735a920a3ca505d382bbc, implementation)
        }
        (bool ok,) = implementation.delegatecall(call);
        require(ok, "Initialization failed");
    }

    fallback() external payable {
        assembly {
            calldatacopy(0, 0, calldatasize())
            let target := sload(0x360894a13ba1a3210667c828492db98dca3e2076cc3735a920a3ca505d382bbc)
            let ok := delegatecall(gas(), target, 0, calldatasize(), 0, 0)
            returndatacopy(0, 0, returndatasize())
            switch ok
            case 0 { revert(0, returndatasize()) }
            default { return(0, returndatasize()) }
        }
    }
}
