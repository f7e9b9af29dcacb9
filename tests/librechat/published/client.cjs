// One published version of @librechat/agents, driven through its own ToolNode.
//
// The ToolNode carries files, hints and deletions from call to call, as in LibreChat. Nothing here
// depends on a version, except for the way in which a client authenticates.
const fs = require('node:fs');
const path = require('node:path');
const { createRequire } = require('node:module');

const TOOLS = [
  ['CodeExecutor', 'createCodeExecutionTool'],
  ['BashExecutor', 'createBashExecutionTool'],
  ['ProgrammaticToolCalling', 'createProgrammaticToolCallingTool'],
  ['BashProgrammaticToolCalling', 'createBashProgrammaticToolCallingTool'],
];

// LibreChat gives its whole execution context to the factories of the tools.
const CONTEXT = {
  codeSessionKey: 'execute_code',
  executionRouteKey: 'default',
  environmentId: 'tare',
  environmentType: 'managed',
  codeEnvironmentSettings: { idle: 30 },
};

class Client {
  // `directory` has the name of its version. Old versions read the base URL when they are loaded.
  constructor(directory, baseUrl) {
    this.directory = directory;
    this.version = path.basename(directory);
    this.baseUrl = baseUrl;
    process.env.LIBRECHAT_CODE_BASEURL = baseUrl;
    this.require = createRequire(path.join(directory, 'package.json'));
    this.ToolNode = this.load('ToolNode').ToolNode;
    this.factories = TOOLS.map(([file, name]) => this.load(file)?.[name]).filter(Boolean);
    this.tools = this.conversation().tools;
  }

  // A file of the package, or undefined if this version does not have it.
  load(name) {
    const file = path.join(this.directory, 'dist/cjs/tools', `${name}.cjs`);
    return fs.existsSync(file) ? require(file) : undefined;
  }

  // Whether this version is at least that one.
  since(version) {
    const [mine, other] = [this.version, version].map((text) => text.split('.').map(Number));
    const place = mine.findIndex((number, index) => number !== other[index]);
    return place === -1 || mine[place] > other[place];
  }

  has(tool) {
    return this.tools.includes(tool);
  }

  // options: `hint` (the session), `profile`, `headers` (a function), `functions` (tools that code
  // can call, by their names), and more parameters for the factories of the tools.
  conversation(options = {}) {
    return new Conversation(this, options);
  }
}

class Conversation {
  constructor(client, { hint, profile, headers, functions = {}, ...more }) {
    this.client = client;
    this.sessions = new Map();
    this.calls = 0;
    process.env.LIBRECHAT_CODE_BASEURL = client.baseUrl;
    const parameters = client.since('3.2.0')
      ? { authHeaders: headers, ...laterParameters(client, hint, profile), ...more }
      : { apiKey: headers?.()['X-API-Key'] ?? 'any' };
    const tools = client.factories.map((create) => create(parameters));
    this.tools = tools.map((tool) => tool.name);
    const callable = Object.entries(functions).map((one) => this.callable(...one));
    this.node = new client.ToolNode({
      tools: [...tools, ...callable],
      sessions: this.sessions,
      toolRegistry: new Map(callable.map((tool) => [tool.name, definition(tool)])),
      toolExecution: { sandbox: { statefulSessions: hint != null, runtimeSessionHint: hint } },
    });
  }

  // A tool that code can call: `[parameters, implementation]`.
  callable(name, [parameters, implementation]) {
    const { tool } = this.client.require('@langchain/core/tools');
    const schema = { type: 'object', ...parameters };
    return tool(implementation, { name, description: name, schema });
  }

  // One turn of the model: its calls `[name, arguments]` run in parallel. Returns the messages that
  // the model gets.
  async turn(calls, config = {}) {
    const { AIMessage } = this.client.require('@langchain/core/messages');
    const tool_calls = calls.map(([name, args]) => {
      this.calls += 1;
      return { name, args, id: `call_${this.calls}`, type: 'tool_call' };
    });
    const input = { messages: [new AIMessage({ content: '', tool_calls })] };
    const { messages } = await this.node.invoke(input, config);
    return messages;
  }

  // A turn with one call.
  async run(name, args, config) {
    const [message] = await this.turn([[name, args]], config);
    return message;
  }

  python(code, config) {
    return this.run('execute_code', { lang: 'py', code }, config);
  }

  // With `bash_tool`, or with `execute_code` if this version does not have it.
  bash(command, config) {
    return this.client.has('bash_tool')
      ? this.run('bash_tool', { command }, config)
      : this.run('execute_code', { lang: 'bash', code: command }, config);
  }

  // The files that the ToolNode sends with the next call.
  get files() {
    return this.sessions.get('execute_code')?.files ?? [];
  }
}

function laterParameters(client, hint, profile) {
  const stateful = hint == null ? {} : { statefulSessions: true };
  if (!client.since('3.6.0')) return stateful;
  const executionProfile = profile ?? (hint == null ? 'default' : 'stateful');
  return { ...CONTEXT, ...stateful, executionProfile };
}

function definition({ name, description, schema }) {
  return { name, description, parameters: schema, allowed_callers: ['direct', 'code_execution'] };
}

module.exports = { Client, CONTEXT };
