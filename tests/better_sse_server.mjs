// An event stream by better-sse: node better_sse_server.mjs EVENTS
// EVENTS: JSON, a list of [data, event, id]. Prints its port, sends the events after Last-Event-ID
// with comments in between, then ends the stream.
import http from "node:http";
import { createSession } from "better-sse";

const events = JSON.parse(process.argv[2]);

const server = http.createServer(async (request, response) => {
  const session = await createSession(request, response, { retry: 1234, keepAlive: 10 });
  const done = events.findIndex(([, , id]) => id === session.lastId) + 1;
  for (const [data, event, id] of events.slice(done)) {
    session.push(data, event, id);
    await new Promise((resolve) => setTimeout(resolve, 15));
  }
  response.end();
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
