// The rows of the table of tested clients in docs/librechat.md, made from the packages themselves.

// What a client adds on the wire, with the first version that has it.
const ADDITIONS = [
  ['3.2.0', 'tokens'],
  ['3.2.59', 'sessions'],
  ['3.6.0', 'profiles'],
  ['3.8.0', 'delivery warnings'],
  ['3.9.1', 'cancelling, deletions, attached workspaces'],
];

function row(client) {
  const added = ADDITIONS.filter(([since]) => client.since(since)).map(([, what]) => what);
  const tools = client.tools.map((tool) => `\`${tool}\``).join(', ');
  return `| ${client.version} | ${tools} | ${added.join(', ') || 'a key'} |`;
}

module.exports = { row };
