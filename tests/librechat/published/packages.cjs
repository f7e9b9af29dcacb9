// Prepares unpacked versions of @librechat/agents for `npm install`, in one tree for all of them.
//
//   node packages.cjs DIRECTORY
//
// DIRECTORY contains one directory for each version, with the name of the version. Each becomes a
// workspace that depends only on the packages that a ToolNode loads: a whole tree has 550 MB. npm
// installs a dependency once for all versions that accept the same version of it.
const fs = require('node:fs');
const path = require('node:path');

const LOADED = new Set([
  '@langchain/core', '@langchain/langgraph', '@langfuse/core', '@langfuse/langchain',
  '@langfuse/otel', '@langfuse/tracing', 'ai-tokenizer', 'axios', 'diff', 'dotenv',
  'https-proxy-agent', 'nanoid', 'okapibm25', 'socks-proxy-agent', 'uuid',
]);
const ROOT = {
  private: true,
  // The versions that most clients share, and packages that clients load but do not name.
  dependencies: {
    '@langchain/core': '1.2.8', '@langchain/langgraph': '1.4.8', '@opentelemetry/api': '1',
    'node-fetch': '2', uuid: '11', 'zod-to-json-schema': '3',
  },
  // The newest version that 3.2.21 accepts needs a newer core than 3.2.21 accepts.
  overrides: { 'agents-3.2.21': { '@langchain/langgraph': '1.2.9' } },
};

const write = (file, content) => fs.writeFileSync(file, JSON.stringify(content, null, 2));

function reduce(directory, version) {
  const file = path.join(directory, version, 'package.json');
  const { dependencies } = JSON.parse(fs.readFileSync(file));
  const loaded = Object.entries(dependencies).filter(([name]) => LOADED.has(name));
  write(file, { name: `agents-${version}`, version, dependencies: Object.fromEntries(loaded) });
}

const [directory] = process.argv.slice(2);
const workspaces = fs.readdirSync(directory);
workspaces.forEach((version) => reduce(directory, version));
write(path.join(directory, 'package.json'), { ...ROOT, workspaces });
