// Drives published clients against a server: checks every claim of a subject with every client.
//
//   node drive.cjs SUBJECT SERVER DIRECTORY...
//   node drive.cjs table DIRECTORY...
//
// SUBJECT is a file beside this one; it exports claims by their names. SERVER is the server's
// address. A DIRECTORY contains one version of @librechat/agents and has its name. The second form
// prints the rows of the table in docs/librechat.md.
//
// While it runs, the driver asks its parent for what only the parent can do: it writes a line to
// standard output and reads one line from standard input (`ask`). A result is a line that begins
// with `holds`, `FAILS` or `omits`. Clients write to standard error.
const assert = require('node:assert/strict');
const path = require('node:path');
const readline = require('node:readline');
const { Client } = require('./client.cjs');
const { Tap } = require('./tap.cjs');
const { row } = require('./table.cjs');

for (const method of ['log', 'info', 'debug']) console[method] = console.error;

const say = (line) => process.stdout.write(`${line}\n`);
const replies = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function ask(line) {
  say(line);
  const { value } = await replies.next();
  assert.notEqual(value, 'late', line);
  return value;
}

// Returns the result in one word, and the reason of a failure.
async function judge(claim, world) {
  if (!applies(claim, world)) return ['omits'];
  try {
    await claim(world);
    return ['holds'];
  } catch (error) {
    return ['FAILS', `${error.stack}\n${world.tap.recent(world.client.version)}`];
  }
}

// A claim may need a version or a tool, and some claims need no more than one client.
function applies({ since, tool, isOnce }, { client, isLast }) {
  return (
    (since === undefined || client.since(since)) &&
    (tool === undefined || client.has(tool)) &&
    (isOnce !== true || isLast)
  );
}

async function drive(subject, server, directories) {
  const claims = Object.entries(require(path.join(__dirname, `${subject}.cjs`)));
  const tap = await Tap.open(server);
  const clients = directories.map((one) => new Client(one, tap.url(path.basename(one))));
  let failures = 0;
  for (const client of clients) {
    const isLast = client === clients.at(-1);
    for (const [name, claim] of claims) {
      const begin = Date.now();
      const [result, reason] = await judge(claim, { client, tap, ask, isLast });
      say(`${result} with ${client.version}: ${name} (${Date.now() - begin} ms)`);
      if (reason !== undefined) console.error(reason);
      failures += Number(result === 'FAILS');
    }
  }
  tap.close();
  return failures;
}

async function main([subject, ...rest]) {
  if (subject === 'table') {
    rest.forEach((directory) => say(row(new Client(directory, 'http://127.0.0.1:1/v1'))));
    return 0;
  }
  const [server, ...directories] = rest;
  return drive(subject, server, directories);
}

main(process.argv.slice(2)).then((failures) => process.exit(failures === 0 ? 0 : 1));
