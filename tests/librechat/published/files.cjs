// Files go from call to call, and to the user.
const assert = require('node:assert/strict');
const { since, assertRefused, assertPrinted } = require('./claims.cjs');
const { Host } = require('./host.cjs');

const ID = /^[A-Za-z0-9_-]{21}$/;
const USER = { kind: 'user', id: 'u1' };
const names = (files) => files.map((file) => file.name).sort();

// The reasons and the shape that clients accept in `artifact_truncation`.
function assertTruncation(truncation, reasons) {
  assert.equal(truncation.code, 'artifact_truncated');
  assert.deepEqual(truncation.reasons, reasons);
  const count = Object.values(reasons).reduce((sum, one) => sum + one, 0);
  assert.equal(truncation.skipped_count, count);
  assert.equal(truncation.skipped.length, Math.min(count, 20));
}

module.exports = {
  'a written file reaches the user': async ({ client }) => {
    const conversation = client.conversation();
    const { artifact } = await conversation.python('open("/mnt/data/plot.png", "w").write("x")');
    assert.deepEqual(names(artifact.files), ['plot.png']);
    const [file] = artifact.files;
    for (const id of [artifact.session_id, file.id]) assert.match(id, ID);
    assert.equal(await new Host(client).download(file), 'x');
  },

  'the next call has the files of the call before': async ({ client }) => {
    const conversation = client.conversation();
    await conversation.bash('mkdir -p deep/er; echo 1 > a.csv; echo 2 > deep/er/b.csv');
    const message = await conversation.python('print(open("a.csv").read() + open("deep/er/b.csv").read())');
    assertPrinted(message, '1\n2');
    // First-generation clients would take unchanged files for new ones.
    const unchanged = client.since('3.2.0') ? ['a.csv', 'deep/er/b.csv'] : [];
    assert.deepEqual(names((message.artifact.files ?? []).filter((file) => file.inherited)), unchanged);
    assert.deepEqual(names(conversation.files), ['a.csv', 'deep/er/b.csv']);
  },

  'all tools of a conversation share its files': async ({ client }) => {
    const conversation = client.conversation({ functions: { noop: [{}, async () => 'done'] } });
    await conversation.bash('echo 1 > a.csv');
    const calls = { run_tools_with_code: 'open("b.csv", "w").write(open("a.csv").read())', run_tools_with_bash: 'cp b.csv c.csv' };
    const tools = Object.keys(calls).filter((tool) => client.has(tool));
    for (const tool of tools) await conversation.run(tool, { code: calls[tool] });
    const written = ['a.csv', 'b.csv', 'c.csv'].slice(0, tools.length + 1);
    assert.deepEqual(names(conversation.files), written);
    assertPrinted(await conversation.bash(`cat ${written.at(-1)}`), '1');
  },

  'a changed file replaces the old one and names it': async ({ client }) => {
    const conversation = client.conversation();
    await conversation.bash('echo 1 > a.csv');
    const [before] = conversation.files;
    const { artifact } = await conversation.bash('echo 2 >> a.csv');
    const [file] = artifact.files;
    assert.notEqual(file.id, before.id);
    assert.equal(file.modified_from.id, before.id);
    assertPrinted(await conversation.bash('cat a.csv'), '1\n2');
  },

  'a removed file does not come back': since('3.9.1', async ({ client }) => {
    const conversation = client.conversation();
    await conversation.bash('echo 1 > a.csv; echo 2 > b.csv');
    await conversation.bash('rm a.csv');
    assert.deepEqual(names(conversation.files), ['b.csv']);
    assertPrinted(await conversation.bash('ls'), 'b.csv');
  }),

  'uploaded files of users, agents and skills are inputs': since('3.2.0', async ({ client }) => {
    const owners = [USER, { kind: 'agent', id: 'a1' }, { kind: 'skill', id: 's1', version: 1 }];
    const host = new Host(client);
    const uploads = owners.map((owner) => host.upload(`${owner.kind}/a.txt`, owner.kind, owner));
    const files = await Promise.all(uploads);
    const conversation = client.conversation();
    conversation.sessions.set('execute_code', { session_id: files[0].session_id, files });
    assertPrinted(await conversation.bash('cat */a.txt'), 'agentskilluser');
  }),

  'the client finds the files of a session': async ({ client }) => {
    const { artifact } = await client.conversation().bash('echo 1 > a.csv; echo 2 > b.csv');
    const { fetchSessionFiles } = client.load('ProgrammaticToolCalling');
    const found = client.since('3.2.0')
      ? await fetchSessionFiles(client.baseUrl, artifact.session_id, USER)
      : await fetchSessionFiles(client.baseUrl, 'any', artifact.session_id);
    const shown = (files) => files.map(({ id, name }) => `${name} ${id}`).sort();
    assert.deepEqual(shown(found), shown(artifact.files));
  },

  'a conversation may have 300 files': async ({ client }) => {
    const conversation = client.conversation();
    const write = (call) => `for n in $(seq 100); do echo ${call} > ${call}-$n.csv; done`;
    for (const call of [1, 2, 3]) await conversation.bash(write(call));
    assert.equal(conversation.files.length, 300);
    assertPrinted(await conversation.bash('ls | wc -l'), '300');
  },

  'a profile that is not served is refused': since('3.6.0', async ({ client }) => {
    const hint = 'v2:user:0123456789abcdef0123456789abcdef';
    const message = await client.conversation({ hint }).bash('echo 1');
    assertRefused(client, message, 409, 'unsupported');
    assertPrinted(await client.conversation({ profile: 'default' }).bash('echo 1'), '1');
  }),

  'files that are not returned are counted by reason': since('3.9.1', async ({ client, tap }) => {
    const conversation = client.conversation();
    const deep = `${'d/'.repeat(12)}`;
    await conversation.bash(`mkdir -p ${deep}; echo 1 > ${deep}a.csv; for n in $(seq 105); do echo > $n.csv; done`);
    const { answer } = tap.of(client.version, '/exec').at(-1);
    assertTruncation(answer.artifact_truncation, { max_files: 5, depth: 1 });
  }),
};
