// When a claim applies, and what clients tell the model about a refused call.
const assert = require('node:assert/strict');

// The claim applies to clients from this version on.
const since = (version, claim) => Object.assign(claim, { since: version });
// The claim applies to clients with this tool.
const withTool = (tool, claim) => Object.assign(claim, { tool });
// The claim is about the server: one client is enough.
const once = (claim) => Object.assign(claim, { isOnce: true });

// Clients from 3.3.1 on replace the server's text by one of these sentences.
const SENTENCES = {
  rejected: 'The code execution request was rejected. Please check the tool input and try again.',
  unauthorized: 'Code execution is not authorized. Verify access before trying again.',
  unavailable: 'Code execution is temporarily unavailable. Please retry.',
  unsupported: 'Code execution is not supported by the selected environment.',
};

// Checks that the call failed and that the model learns why. Older clients show the status.
function assertRefused(client, message, status, kind) {
  assert.equal(message.status, 'error', message.content);
  if (!client.since('3.3.1')) {
    assert.ok(message.content.includes(String(status)), message.content);
    return;
  }
  const isUnknown = kind === 'unsupported' && !client.since('3.8.5');
  const sentence = SENTENCES[isUnknown ? 'unavailable' : kind];
  assert.ok(message.content.includes(sentence), message.content);
}

// Checks that the code ran and that this is all that it wrote to standard output.
function assertPrinted(message, text) {
  assert.notEqual(message.status, 'error', message.content);
  const shown = /^stdout:\n([^]*?)\n*(?=stderr:\n|Generated files:\n|Note: |Artifact delivery|$)/;
  assert.equal(shown.exec(message.content)?.[1], text, message.content);
}

module.exports = { since, withTool, once, assertRefused, assertPrinted };
