// Compile the contracts here with the `solc` of the folder given: node build.cjs NODE_MODULES
// Prints {contract: {abi, bytecode, compiler}}, which tools/contracts.py compares with or writes to
// what is shipped. The version and settings are part of what is compared.
const fs = require('fs');
const path = require('path');
const solc = require(path.join(path.resolve(process.argv[2]), 'solc'));

const names = ['OwnersAppAuth.sol', 'stand-ins/DstackStandIn.sol'];
const settings = {
  evmVersion: 'paris', // without PUSH0, for chains that lack it
  optimizer: {enabled: true, runs: 200},
  metadata: {bytecodeHash: 'none', appendCBOR: false}, // the code depends on nothing but the code
  outputSelection: {'*': {'*': ['abi', 'evm.bytecode.object']}},
};
const sources = Object.fromEntries(
  names.map((name) => [name, {content: fs.readFileSync(path.join(__dirname, name), 'utf8')}]),
);
const out = JSON.parse(solc.compile(JSON.stringify({language: 'Solidity', sources, settings})));
for (const problem of out.errors ?? []) console.error(problem.formattedMessage);
if ((out.errors ?? []).some((problem) => problem.severity === 'error')) process.exit(1);
const built = {};
for (const file of Object.values(out.contracts)) {
  for (const [name, contract] of Object.entries(file)) {
    if (!contract.evm.bytecode.object) continue; // an interface
    built[name] = {abi: contract.abi, bytecode: contract.evm.bytecode.object, compiler: solc.version()};
  }
}
console.log(JSON.stringify(built));
