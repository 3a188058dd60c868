// The official clients, asked by tests/adapters/front_ends/test_front_ends_in_node.py: a request on stdin, an answer on stdout.

import { HttpAgent } from "@ag-ui/client";
import {
  AbstractChat,
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from "ai";

// What useChat does, without React.
class Chat extends AbstractChat {
  constructor({ messages = [], ...options }) {
    const state = {
      status: "ready",
      error: undefined,
      messages,
      pushMessage: (message) => (state.messages = [...state.messages, message]),
      popMessage: () => (state.messages = state.messages.slice(0, -1)),
      replaceMessage: (at, message) => (state.messages = state.messages.with(at, structuredClone(message))),
      snapshot: structuredClone,
    };
    super({ ...options, state });
  }
}

const whole = (body) => new Response(body, { headers: { "content-type": "text/event-stream" } });

// A body that breaks off, as a network does.
const broken = (response, after) => {
  const reader = response.body.getReader();
  let count = 0;
  const body = new ReadableStream({
    async pull(controller) {
      const { done, value } = await reader.read();
      if (done) return controller.close();
      controller.enqueue(value);
      count += value.length;
      if (count > after) {
        await reader.cancel();
        controller.error(new TypeError("network error"));
      }
    },
  });
  return new Response(body, response);
};

const shown = ({ messages, status, error }) => ({ messages, status, error: error?.message });

const until = async (condition) => {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 20));
};

const requests = {
  // What the clients make of streams: one of each.
  async replayed({ vercel, agUi }) {
    const found = { vercel: [], agUi: [] };
    for (const body of vercel) {
      const chat = new Chat({ id: "c", transport: new DefaultChatTransport({ fetch: async () => whole(body) }) });
      await chat.sendMessage({ text: "hello" });
      found.vercel.push(shown(chat));
    }
    for (const body of agUi) {
      const agent = new HttpAgent({ url: "http://service", threadId: "thread", fetch: async () => whole(body) });
      const customs = [];
      let error;
      await agent
        .runAgent({ runId: "their-run" }, { onCustomEvent: ({ event }) => void customs.push([event.name, event.value]) })
        .catch((failed) => (error = String(failed)));
      found.agUi.push({ messages: agent.messages, state: agent.state, customs, error });
    }
    return found;
  },

  async chatted({ url, headers, text, approval, labels }) {
    const asked = [];
    let cutAfter = 1500;
    const fetching = async (...args) => {
      asked.push(`${args[1].method} ${new URL(args[0]).pathname}`);
      const response = await fetch(...args);
      if (!cutAfter || !response.body) return response;
      const cut = broken(response, cutAfter);
      cutAfter = 0;
      return cut;
    };
    const api = `${url}/v1/ui/chat`;
    const slow = new Chat({
      id: "slow",
      transport: new DefaultChatTransport({ api, headers, fetch: fetching, body: { engine: "slow" } }),
    });
    await slow.sendMessage({ text });
    const cut = shown(slow);
    await slow.resumeStream();
    const resumed = shown(slow);
    await slow.resumeStream(); // nothing runs
    await slow.regenerate();
    const regenerated = shown(slow);

    const agent = new Chat({
      id: "agent",
      transport: new DefaultChatTransport({ api, headers, body: { engine: "agent", labels } }),
      sendAutomaticallyWhen: (options) =>
        lastAssistantMessageIsCompleteWithApprovalResponses(options) ||
        lastAssistantMessageIsCompleteWithToolCalls(options),
      onToolCall: ({ toolCall }) => {
        if (toolCall.toolName === "driver")
          agent.addToolOutput({ tool: "driver", toolCallId: toolCall.toolCallId, output: "at noon" });
      },
    });
    await agent.sendMessage({ text: approval });
    const requested = () => agent.lastMessage.parts.find((part) => part.state === "approval-requested");
    await until(() => agent.status === "ready" && requested());
    await agent.addToolApprovalResponse({ id: requested().approval.id, approved: true });
    await until(() => agent.status === "ready" && agent.lastMessage.parts.at(-1).type === "text");
    return { asked, cut, resumed, regenerated, approved: shown(agent) };
  },

  async ran({ url, headers, text }) {
    const agent = new HttpAgent({ url: `${url}/v1/ag-ui/agent`, headers, threadId: "thread" });
    const tools = [{ name: "map", description: "Shows a place.", parameters: { type: "object", properties: {} } }];
    const outcomes = [];
    const seen = { onRunFinishedEvent: (told) => void outcomes.push([told.outcome, told.pendingToolCallIds]) };
    agent.addMessage({ id: "u1", role: "user", content: text });
    await agent.runAgent({ tools }, seen);
    const [toolCallId] = outcomes[0][1];
    agent.addMessage({ id: "t1", role: "tool", toolCallId, content: "a map" });
    await agent.runAgent({ tools }, seen);
    const [{ id }] = agent.pendingInterrupts;
    await agent.runAgent({ tools, resume: [{ interruptId: id, status: "resolved", payload: { approved: true } }] }, seen);
    return { messages: agent.messages, outcomes: outcomes.map(([outcome]) => outcome) };
  },
};

let given = "";
for await (const chunk of process.stdin) given += chunk;
const { request, ...options } = JSON.parse(given);
process.stdout.write(JSON.stringify(await requests[request](options)), () => process.exit(0));
