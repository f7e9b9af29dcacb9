// Every tool runs code, and the model sees what the code wrote.
const assert = require('node:assert/strict');
const { CONTEXT } = require('./client.cjs');
const { since, withTool, once, assertRefused, assertPrinted } = require('./claims.cjs');
const { Host } = require('./host.cjs');

// In any case; clients and hosts send several names for one language.
const LANGUAGES = {
  python: ['py', 'python', 'Python'],
  bash: ['bash', 'sh', 'BASH'],
  node: ['js', 'javascript', 'bun', 'bun-js', 'node', 'nodejs', 'node-js', 'node-javascript'],
};
const PROGRAMS = { python: 'print(1)', bash: 'echo 1', node: 'console.log(1)' };

module.exports = {
  'the model sees standard output and standard error': async ({ client }) => {
    const code = 'import sys; print("out"); print("err", file=sys.stderr)';
    const message = await client.conversation().python(code);
    assert.match(message.content, /stdout:\nout$/m);
    assert.match(message.content, /stderr:\nerr$/m);
  },

  'execute_code runs Python, JavaScript and bash with arguments': async ({ client }) => {
    const programs = [
      ['py', 'import sys; print(sys.argv[1:])', "['a b', 'c']"],
      ['js', 'console.log(process.argv.slice(2))', "[ 'a b', 'c' ]"],
      ['bash', 'echo "$2 $1"', 'c a b'],
    ];
    for (const [lang, code, printed] of programs) {
      const args = { lang, code, args: ['a b', 'c'] };
      assertPrinted(await client.conversation().run('execute_code', args), printed);
    }
  },

  'bash_tool runs commands with arguments': withTool('bash_tool', async ({ client }) => {
    const args = { command: 'echo "$1, $PWD"', args: ['a b'] };
    assertPrinted(await client.conversation().run('bash_tool', args), 'a b, /mnt/data');
  }),

  'the model learns that code printed nothing': async ({ client }) => {
    const { content } = await client.conversation().run('execute_code', { lang: 'js', code: '' });
    assert.match(content, /^stdout: Empty\./);
  },

  'a failed program is a normal answer with its output': async ({ client }) => {
    const message = await client.conversation().bash('echo before; echo no >&2; exit 3');
    assert.notEqual(message.status, 'error');
    assert.match(message.content, /stdout:\nbefore\n+stderr:\nno$/m);
  },

  'a traceback names the lines of the code': async ({ client }) => {
    const { content } = await client.conversation().python('x = 1\ny = 2\nraise KeyError(x)');
    assert.match(content, /line 3/);
  },

  'a language that is not installed is rejected': async ({ client }) => {
    const message = await client.conversation().run('execute_code', { lang: 'd', code: 'x' });
    assertRefused(client, message, 400, 'rejected');
  },

  'the calls of one turn run in parallel': async ({ client }) => {
    const codes = ['1', '2', '3', '4'].map((number) => `echo ${number}`);
    const calls = codes.map((code) => ['execute_code', { lang: 'bash', code }]);
    const messages = await client.conversation().turn(calls);
    messages.forEach((message, index) => assertPrinted(message, String(index + 1)));
  },

  'fields that the server does not know are ignored': since('3.6.0', async ({ client, tap }) => {
    assertPrinted(await client.conversation().python('print(1)'), '1');
    const { sent } = tap.of(client.version, '/exec').at(-1);
    for (const [field, value] of Object.entries(CONTEXT)) assert.deepEqual(sent[field], value);
  }),

  'the tool search of code_interpreter mode finds tools': async ({ client }) => {
    const tool = (name, description) => [name, { name, description, defer_loading: true }];
    const toolRegistry = new Map([tool('weather', 'of a city'), tool('mail', 'sends mail')]);
    const { createToolSearch } = client.load('ToolSearch');
    const search = createToolSearch({ toolRegistry, mode: 'code_interpreter', apiKey: 'any' });
    const found = JSON.stringify(await search.invoke({ query: 'weather' }));
    assert.match(found, /weather/);
    assert.doesNotMatch(found, /sends mail/);
  },

  'languages have all names of the reference server': once(async ({ client }) => {
    for (const [language, names] of Object.entries(LANGUAGES)) {
      for (const name of names) {
        const { status, json } = await new Host(client).exec(name, PROGRAMS[language]);
        assert.deepEqual([status, json.stdout], [200, '1\n'], name);
      }
    }
  }),

  'JavaScript may import modules and await at its top': async ({ client }) => {
    const code = "import { basename } from 'node:path';\nconsole.log(await Promise.resolve(basename('/a/b')))";
    assertPrinted(await client.conversation().run('execute_code', { lang: 'js', code }), 'b');
  },

  'LibreChat reads and writes files for the model': once(async ({ client }) => {
    const host = new Host(client);
    const written = await host.writeFile('/mnt/data/notes/a.md', 'text\n');
    const { files } = written.json;
    assert.deepEqual(files.map((file) => file.name), ['notes/a.md']);
    const [file] = files;
    const input = { ...file, kind: 'user', resource_id: 'u1' };
    const read = await host.readFile('/mnt/data/notes/a.md', { files: [input] });
    assert.deepEqual([read.json.stdout, read.json.status], ['text\n', null]);
  }),

  'LibreChat reads an image in chunks': once(async ({ client }) => {
    const host = new Host(client);
    const image = Buffer.from(Array.from({ length: 80_000 }, (_, index) => (index * 7) % 256));
    const file = await host.upload('a.png', image, { kind: 'user', id: 'u1' });
    const chunks = [];
    for (let offset = 0; offset < image.length; offset += 32 << 10) {
      const { json } = await host.readChunk('a.png', offset, 32 << 10, { files: [file] });
      chunks.push(Buffer.from(json.stdout, 'base64'));
    }
    assert.ok(Buffer.concat(chunks).equals(image));
  }),
};
