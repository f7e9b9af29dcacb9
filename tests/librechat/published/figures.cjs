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
  'plt.show() saves no figure that was saved already': async ({ client }) => {
    const code = 'import matplotlib.pyplot as plt\nplt.plot([1])\nplt.savefig("mine.png")\nplt.show()';
    await assertFigures(await client.conversation().python(code), ['mine.png']);
  },

  'tracebacks of code with figures name its lines': async ({ client }) => {
    const message = await client.conversation().python(`${SHOW_TWICE}raise KeyError("why")`);
    assert.match(message.content, /line 6, in <module>[^]*KeyError: 'why'/);
  },
};
