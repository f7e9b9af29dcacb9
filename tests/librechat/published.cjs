// The code that LibreChat runs, as it is published on npm, against a server.
//
//   node published.cjs PACKAGE BASE_URL GENERATION
//
// PACKAGE is an unpacked @librechat/agents, with what it needs beside it. GENERATION is
// 1 for clients with an API key, which is in LIBRECHAT_CODE_API_KEY, else 2.
const assert = require('node:assert/strict');
const path = require('node:path');

const [directory, baseUrl, generation] = process.argv.slice(2);
process.env.LIBRECHAT_CODE_BASEURL = baseUrl;
const load = (name) => require(path.join(directory, 'dist/cjs/tools', `${name}.cjs`));
const { createCodeExecutionTool } = load('CodeExecutor');
const ptc = load('ProgrammaticToolCalling');
const isFirst = generation === '1';

const execute = createCodeExecutionTool(isFirst ? {} : { user_id: 'u1' });

// As ToolNode calls a tool: with the session and the files of the call before.
async function run(input, session = {}) {
  const call = { name: execute.name, args: input, id: 'call', type: 'tool_call', ...session };
  const message = await execute.invoke(call, { toolCall: call });
  return [message.content, message.artifact];
}

async function code() {
  const [text, artifact] = await run({
    lang: 'py',
    code: 'print("out"); import sys; print("err", file=sys.stderr); open("/mnt/data/plot.png", "w").write("x")',
  });
  assert.match(text, /stdout:\nout$/m);
  assert.match(text, /stderr:\nerr$/m);
  assert.equal(artifact.files.length, 1);
  const [file] = artifact.files;
  assert.equal(file.name, 'plot.png');
  for (const id of [artifact.session_id, file.id]) {
    assert.match(id, /^[A-Za-z0-9_-]{21}$/);
  }
  // The next call has the files of the first.
  const session = { session_id: artifact.session_id };
  if (!isFirst) {
    session._injected_files = [
      { ...file, storage_session_id: file.storage_session_id, kind: 'user', resource_id: 'u1' },
    ];
  }
  const [again, same] = await run({ lang: 'py', code: 'print(open("plot.png").read())' }, session);
  assert.match(again, /stdout:\nx$/m);
  assert.equal(same.files[0].inherited, true);
  const [empty] = await run({ lang: 'js', code: '' });
  assert.match(empty, /stdout: Empty/);
  const [failed] = await run({ lang: 'bash', code: 'echo no >&2; exit 3' });
  assert.match(failed, /stderr:\nno$/m);
  await assert.rejects(run({ lang: 'd', code: 'x' }), /400/);
  return artifact;
}

async function files(artifact) {
  const { session_id } = artifact;
  const found = isFirst
    ? await ptc.fetchSessionFiles(baseUrl, process.env.LIBRECHAT_CODE_API_KEY, session_id)
    : await ptc.fetchSessionFiles(baseUrl, session_id, { kind: 'user', id: 'u1' });
  assert.deepEqual(
    found.map(({ id, name }) => ({ id, name })),
    artifact.files.map(({ id, name }) => ({ id, name })),
  );
}

// Tools as ToolNode hands them over.
const toolMap = new Map([
  ['get_weather', { name: 'get_weather', invoke: async ({ city }) => ({ city, degrees: 20 }) }],
  [
    'fails-always',
    {
      name: 'fails-always',
      invoke: async () => {
        throw new Error('no luck');
      },
    },
  ],
]);
const toolDefs = [...toolMap.keys()].map((name) => ({ name, description: name, parameters: {} }));

async function programmatic(create, source, expected) {
  const tool = create({ baseUrl, apiKey: process.env.LIBRECHAT_CODE_API_KEY });
  const args = { code: source, timeout: 15000 };
  const call = { name: tool.name, args, id: 'call', type: 'tool_call', toolMap, toolDefs };
  const message = await tool.invoke(call, { toolCall: call });
  assert.equal(message.content.trim(), `stdout:\n${expected}`);
}

async function main() {
  const artifact = await code();
  await files(artifact);
  await programmatic(
    ptc.createProgrammaticToolCallingTool,
    `here, there = await asyncio.gather(get_weather(city="A"), get_weather(city="B"))
print(here["city"], there["degrees"])
try:
    await fails_always()
except Exception as error:
    print(error)`,
    'A 20\nno luck',
  );
  if (isFirst) {
    return;
  }
  const { createBashProgrammaticToolCallingTool } = load('BashProgrammaticToolCalling');
  await programmatic(
    createBashProgrammaticToolCallingTool,
    `weather=$(get_weather '{"city":"A"}'); echo "$weather"; fails_always '{}' 2>&1 || echo failed`,
    '{"city":"A","degrees":20}\nno luck\nfailed',
  );
  const { createBashExecutionTool } = load('BashExecutor');
  const bash = createBashExecutionTool({});
  const args = { command: 'echo from bash' };
  const call = { name: bash.name, args, id: 'call', type: 'tool_call' };
  assert.match((await bash.invoke(call, { toolCall: call })).content, /from bash/);
  const { createToolSearch } = load('ToolSearch');
  const registry = new Map([
    ['weather', { name: 'weather', description: 'the weather of a city', defer_loading: true }],
    ['mail', { name: 'mail', description: 'sends mail', defer_loading: true }],
  ]);
  const search = createToolSearch({ toolRegistry: registry, mode: 'code_interpreter' });
  const found = await search.invoke({ query: 'weather' });
  assert.match(JSON.stringify(found), /weather/);
  assert.doesNotMatch(JSON.stringify(found), /sends mail/);
}

main().then(
  () => console.log('as expected'),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
