// Figures: `plt.show()` saves a file, as the reference server does.
const assert = require('node:assert/strict');
const { randomBytes } = require('node:crypto');
const { since } = require('./claims.cjs');

const names = (files) => files.map((file) => file.name).sort();
const SHOW_TWICE = `import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.show()
plt.plot([3])
plt.show()
`;

// Checks the names, and that each file is an image.
async function assertFigures(message, expected) {
  assert.notEqual(message.status, 'error', message.content);
  const generated = (message.artifact.files ?? []).filter((file) => file.inherited !== true);
  assert.deepEqual(names(generated), expected, message.content);
}

module.exports = {
  'plt.show() saves each figure': async ({ client }) => {
    await assertFigures(await client.conversation().python(SHOW_TWICE), ['plot_1.png', 'plot_2.png']);
  },

  'plt.show() saves figures of code that calls tools': async ({ client }) => {
    const conversation = client.conversation({ functions: { noop: [{}, async () => [1, 2]] } });
    const code = 'import matplotlib.pyplot as plt\nplt.plot(await noop())\nplt.show()';
    await assertFigures(await conversation.run('run_tools_with_code', { code }), ['plot_1.png']);
  },

  'plt.show() saves no figure that was saved already': async ({ client }) => {
    const code = 'import matplotlib.pyplot as plt\nplt.plot([1])\nplt.savefig("mine.png")\nplt.show()';
    await assertFigures(await client.conversation().python(code), ['mine.png']);
  },

  'a session uses the next free number': since('3.2.59', async ({ client }) => {
    const hint = `v2:user:${randomBytes(16).toString('hex')}`;
    const conversation = client.conversation({ hint });
    await assertFigures(await conversation.python(SHOW_TWICE), ['plot_1.png', 'plot_2.png']);
    await assertFigures(await conversation.python(SHOW_TWICE), ['plot_3.png', 'plot_4.png']);
  }),

  'tracebacks of code with figures name its lines': async ({ client }) => {
    const message = await client.conversation().python(`${SHOW_TWICE}raise KeyError("why")`);
    assert.match(message.content, /line 6, in <module>[^]*KeyError: 'why'/);
  },
};
