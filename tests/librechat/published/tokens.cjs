// Tokens as LibreChat signs them.
const { createPrivateKey, randomUUID, sign } = require('node:crypto');

// An Ed25519 key in DER, without the key itself (RFC 8410).
const PREFIX = Buffer.from('302e020100300506032b657004220420', 'hex');
// The server has the public half (tests/librechat/published.rs).
const SEED = Buffer.alloc(32, 7);
const KEY = createPrivateKey({ key: Buffer.concat([PREFIX, SEED]), format: 'der', type: 'pkcs8' });

const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');

// A token of this user with all claims that newer versions send for a server like this.
function token(user, more = {}) {
  const now = Math.floor(Date.now() / 1000);
  const claims = {
    iss: 'librechat', aud: 'codeapi', sub: user, iat: now, nbf: now, exp: now + 300,
    jti: randomUUID(), tenant_id: 'legacy', role: 'USER', principal_source: 'librechat_jwt',
    auth_context_hash: '0', plan_id: 'free', org_id: 'o1', service_id: 's1', chc_user_id: 'c1',
    ...more,
  };
  const signed = `${part({ alg: 'EdDSA', typ: 'JWT', kid: 'published' })}.${part(claims)}`;
  return `${signed}.${sign(null, Buffer.from(signed), KEY).toString('base64url')}`;
}

// Headers with a fresh token, as a client asks for them before each request.
const authorized = (user, more) => () => ({ Authorization: `Bearer ${token(user, more)}` });

module.exports = { authorized };
