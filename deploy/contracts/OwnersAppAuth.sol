// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.24;

/// What dstack's KMS tells a contract of a guest that boots.
struct AppBootInfo {
    address appId;
    bytes32 composeHash;
    address instanceId;
    bytes32 deviceId;
    bytes32 mrAggregated;
    bytes32 mrSystem;
    bytes32 osImageHash;
    string tcbStatus;
    string[] advisoryIds;
}

/// What dstack's KMS asks of an application's contract. ERC-165 id 0x1e079198.
interface IAppAuth {
    function isAppAllowed(AppBootInfo calldata info) external view returns (bool, string memory);
}

/// One owner's signed decision: when it ends, what else it is about, and the signature over all.
struct Vote {
    uint64 notAfter;
    uint64 deadline;
    bytes32 statement;
    bytes signature;
}

/// Owners decide which deployment documents may boot: k approve, r revoke (spec/chain.md).
///
/// No administrator, no upgrade, no funds. Owners, thresholds and the two switches are fixed when it
/// is made: whoever pins the address pins them.
contract OwnersAppAuth is IAppAuth {
    uint8 public constant COMPOSE = 0;
    uint8 public constant DEVICE = 1;

    /// Last second at which a subject counts, by kind; 0 where it does not. Storage slot 0.
    mapping(uint8 kind => mapping(bytes32 subject => uint64)) public approvedUntil;
    /// Decisions carried out so far on a subject, by kind; the next one carries this number. Slot 1.
    mapping(uint8 kind => mapping(bytes32 subject => uint256)) public nonces;
    /// Slot 2.
    mapping(address => bool) public isOwner;
    address[] private _owners;

    uint256 public immutable approveThreshold;
    uint256 public immutable revokeThreshold;
    bool public immutable requireTcbUpToDate;
    bool public immutable allowAnyDevice;

    bytes32 private constant _DOMAIN =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    bytes32 private constant _DECISION = keccak256(
        "Decision(uint8 kind,bytes32 subject,bool approve,uint256 nonce,uint64 notAfter,uint64 deadline,bytes32 statement)"
    );
    uint256 private constant _HALF_ORDER = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0;

    event Voted(address indexed owner, uint8 indexed kind, bytes32 indexed subject, bool approve, bytes32 statement);
    event Decided(uint8 indexed kind, bytes32 indexed subject, bool approve, uint256 nonce, uint64 until);

    error OwnersInvalid();
    error ThresholdInvalid();
    error KindUnknown(uint8 kind);
    error NotEnough(uint256 votes, uint256 threshold);
    error Late(uint64 deadline, uint256 time);
    error SignatureMalformed();
    error NotOwner(address signer);
    error NotAscending(address signer);

    /// `owners_` in ascending order, which leaves none twice and none of zero.
    constructor(
        address[] memory owners_,
        uint256 approveThreshold_,
        uint256 revokeThreshold_,
        bool requireTcbUpToDate_,
        bool allowAnyDevice_
    ) {
        uint256 n = owners_.length;
        if (n == 0 || n > 64) revert OwnersInvalid();
        if (approveThreshold_ == 0 || approveThreshold_ > n || revokeThreshold_ == 0 || revokeThreshold_ > n) {
            revert ThresholdInvalid();
        }
        address last = address(0);
        for (uint256 i = 0; i < n; i++) {
            if (owners_[i] <= last) revert OwnersInvalid();
            last = owners_[i];
            isOwner[last] = true;
        }
        _owners = owners_;
        approveThreshold = approveThreshold_;
        revokeThreshold = revokeThreshold_;
        requireTcbUpToDate = requireTcbUpToDate_;
        allowAnyDevice = allowAnyDevice_;
    }

    function owners() external view returns (address[] memory) {
        return _owners;
    }

    function supportsInterface(bytes4 id) external pure returns (bool) {
        return id == type(IAppAuth).interfaceId || id == 0x01ffc9a7;
    }

    /// Carry out what enough owners signed; anybody may send it. Votes in ascending order of signers.
    ///
    /// Every decision carried out takes the next nonce of its subject, so all signatures made for the
    /// one before are worth nothing: a revocation also ends approvals that still wait.
    function decide(uint8 kind, bytes32 subject, bool approve, Vote[] calldata votes) external {
        if (kind > DEVICE) revert KindUnknown(kind);
        uint256 threshold = approve ? approveThreshold : revokeThreshold;
        if (votes.length < threshold) revert NotEnough(votes.length, threshold);
        uint256 nonce = nonces[kind][subject];
        uint64 until = approve ? type(uint64).max : 0;
        address last = address(0);
        for (uint256 i = 0; i < votes.length; i++) {
            Vote calldata vote = votes[i];
            if (block.timestamp > vote.deadline) revert Late(vote.deadline, block.timestamp);
            address signer = _signer(kind, subject, approve, nonce, vote);
            if (!isOwner[signer]) revert NotOwner(signer);
            if (signer <= last) revert NotAscending(signer);
            last = signer;
            if (vote.notAfter < until) until = vote.notAfter;
            emit Voted(signer, kind, subject, approve, vote.statement);
        }
        nonces[kind][subject] = nonce + 1;
        approvedUntil[kind][subject] = until;
        emit Decided(kind, subject, approve, nonce, until);
    }

    /// The answer to dstack's KMS.
    function isAppAllowed(AppBootInfo calldata info) external view returns (bool, string memory) {
        if (info.appId != address(this)) return (false, "Another app id than this contract's");
        if (requireTcbUpToDate && keccak256(bytes(info.tcbStatus)) != keccak256("UpToDate")) {
            return (false, "TCB status is not up to date");
        }
        if (approvedUntil[COMPOSE][info.composeHash] < block.timestamp) {
            return (false, "Compose hash not allowed");
        }
        if (!allowAnyDevice && approvedUntil[DEVICE][info.deviceId] < block.timestamp) {
            return (false, "Device not allowed");
        }
        return (true, "");
    }

    /// EIP-712 domain separator; computed each time, so it is right on both sides of a chain split.
    function domainSeparator() public view returns (bytes32) {
        return keccak256(
            abi.encode(
                _DOMAIN, keccak256("sealtrain OwnersAppAuth"), keccak256("1"), block.chainid, address(this)
            )
        );
    }

    function _signer(uint8 kind, bytes32 subject, bool approve, uint256 nonce, Vote calldata vote)
        private
        view
        returns (address)
    {
        bytes calldata signature = vote.signature;
        if (signature.length != 65) revert SignatureMalformed();
        bytes32 digest = keccak256(
            abi.encodePacked(
                hex"1901",
                domainSeparator(),
                keccak256(
                    abi.encode(
                        _DECISION, kind, subject, approve, nonce, vote.notAfter, vote.deadline, vote.statement
                    )
                )
            )
        );
        bytes32 s = bytes32(signature[32:64]);
        // The other half of the curve would be a second form of the same signature.
        if (uint256(s) > _HALF_ORDER) revert SignatureMalformed();
        address signer = ecrecover(digest, uint8(signature[64]), bytes32(signature[:32]), s);
        if (signer == address(0)) revert SignatureMalformed();
        return signer;
    }
}
