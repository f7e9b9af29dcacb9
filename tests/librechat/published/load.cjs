// Twenty users make five parallel calls per turn in their sessions, and each turn prewarms.
const assert = require('node:assert/strict');
const { once } = require('./claims.cjs');
const { Host } = require('./host.cjs');
const { authorized } = require('./tokens.cjs');

const USERS = 20;
const CALLS = 5;
// Turns of each user after the first one, and the least time.
const TURNS = 2;
const MS = 1000 * Number(process.env.TARE_LOAD_SECONDS);

class User {
  constructor(client, number) {
    this.client = client;
    this.headers = authorized(`user-${number}`);
    this.hint = `v2:user:${String(number).padStart(32, '0')}`;
    this.conversation = client.conversation({ headers: this.headers, hint: this.hint });
    this.turns = 0;
  }

  // Every call appends its name to a file and prints the names of this turn.
  async turn() {
    this.turns += 1;
    const prewarmed = new Host(this.client, this.headers()).prewarm(this.hint);
    const calls = Array.from({ length: CALLS }, (_, index) => `${this.turns}-${index}`);
    const command = (name) => `echo ${name} >> all.txt; grep ^${this.turns}- all.txt`;
    const messages = await this.conversation.turn(calls.map((name) => ['bash_tool', { command: command(name) }]));
    assert.equal((await prewarmed).status, 200);
    this.check(calls, messages.map(({ content }) => content.match(/^\d+-\d+$/gm) ?? [content]));
  }

  // The calls ran one after the other: each saw the names before it, and its own name last.
  check(calls, seen) {
    seen.forEach((names, index) => assert.equal(names.at(-1), calls[index]));
    const longest = seen.reduce((one, other) => (other.length > one.length ? other : one));
    assert.deepEqual([...longest].sort(), calls);
    for (const names of seen) assert.deepEqual(names, longest.slice(0, names.length));
  }

  // All turns are in the file, in their order.
  async finish() {
    const { content } = await this.conversation.bash('cut -d- -f1 all.txt | uniq -c');
    const turns = [...content.matchAll(/^ +(\d+) (\d+)$/gm)].map(([, count, turn]) => [count, turn].map(Number));
    assert.deepEqual(turns, Array.from({ length: this.turns }, (_, index) => [CALLS, index + 1]));
  }
}

module.exports = {
  'no call fails, loses output or overtakes another': once(async ({ client, tap, ask }) => {
    const users = () => Array.from({ length: USERS }, (_, number) => new User(client, number));
    await Promise.all(users().map((user) => user.turn()));
    await ask('baseline');
    const end = Date.now() + MS;
    const work = async (user) => {
      do await user.turn();
      while (user.turns < TURNS || Date.now() < end);
      await user.finish();
    };
    await Promise.all(users().map(work));
    await ask('settled');
    const statuses = new Set(tap.exchanges.map(({ status }) => status));
    assert.deepEqual([...statuses], [200]);
  }),
};
