"""The look of all pages: one style sheet, light and dark, from a phone's width on. Fonts are the system's."""

STYLE = """<style>
body { --ink: #1a2230; --soft: #5b667a; --paper: #f5f6f8; --card: #ffffff; --line: #dfe3ea; --accent: #2456c7;
  --accent-ink: #ffffff; --mine: #e8eefc; --good: #17713f; --bad: #b3261e; --busy: #8a5a00; --code: #f0f2f6;
  color: var(--ink); background: var(--paper); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
body.body--dark { --ink: #e6eaf1; --soft: #9aa6b8; --paper: #10141b; --card: #181e28; --line: #2b3442;
  --accent: #7da2ff; --accent-ink: #0d1420; --mine: #1d2a45; --good: #6fd09a; --bad: #ff8f8a; --busy: #f0c060;
  --code: #11161e; color: var(--ink); background: var(--paper); }
.nicegui-content { padding: 0; gap: 0; align-items: stretch; width: 100%; }
.q-page { min-height: 0 !important; }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
:focus-visible { outline: 3px solid var(--accent) !important; outline-offset: 2px; border-radius: 6px; }
.skip { position: absolute; left: -999px; top: 0; background: var(--card); padding: .5rem 1rem; z-index: 20; }
.skip:focus { left: .5rem; top: .5rem; }
header.bar { position: sticky; top: 0; z-index: 10; display: flex; align-items: center; gap: 1.25rem;
  padding: .55rem 1.25rem; background: var(--card); border-bottom: 1px solid var(--line); }
header.bar .brand { font-weight: 700; color: var(--ink); letter-spacing: -.01em; }
header.bar nav { display: flex; gap: .25rem; flex: 1; }
header.bar nav a { color: var(--soft); padding: .3rem .7rem; border-radius: 8px; font-weight: 500; }
header.bar nav a[aria-current] { background: var(--mine); color: var(--ink); }
header.bar .who { color: var(--soft); max-width: 14rem; overflow: hidden; text-overflow: ellipsis; white-space:
  nowrap; }
.content { width: 100%; max-width: 1180px; margin: 0 auto; padding: 1.25rem; box-sizing: border-box; }
h1 { font-size: 1.3rem; font-weight: 650; margin: 0; line-height: 1.3; overflow-wrap: break-word; letter-spacing:
  -.01em; }
h2 { font-size: 1rem; font-weight: 650; margin: 0 0 .5rem; line-height: 1.4; letter-spacing: 0;
  overflow-wrap: anywhere; }
h3 { font-size: .92rem; font-weight: 650; margin: 0; line-height: 1.4; letter-spacing: 0; }
.row { display: flex; flex-wrap: wrap; align-items: center; gap: .6rem; flex-direction: row; }
.row.top { align-items: flex-start; }
.grow { flex: 1; min-width: 0; }
.card > .row, .composer > .row { margin-top: .5rem; }
.card > .row:first-child { margin: 0 0 .6rem; }
.row > h1 { min-width: max-content; }
.row > .q-field { min-width: 12rem; }
.heading { margin-bottom: 1rem; }
.soft { color: var(--soft); }
.small { font-size: .84rem; }
.hidden { display: none !important; }
.banner { margin: 0 0 1rem; padding: .6rem .9rem; border-radius: 10px; border: 1px solid var(--bad); color: var(--bad);
  background: var(--card); overflow-wrap: anywhere; }
.button { font: inherit; font-weight: 550; padding: .38rem .85rem; border-radius: 9px; border: 1px solid var(--line);
  background: var(--card); color: var(--ink); cursor: pointer; line-height: 1.4; }
.button:hover { border-color: var(--accent); }
.button:disabled { opacity: .5; cursor: default; }
.button.main { background: var(--accent); border-color: var(--accent); color: var(--accent-ink); }
.button.bad { color: var(--bad); }
.button.quiet { border-color: transparent; background: none; color: var(--soft); padding: .2rem .5rem; font-size:
  .84rem; }
.button.quiet:hover { color: var(--accent); border-color: var(--line); }
.button[aria-pressed="true"], .button[aria-expanded="true"] { color: var(--accent); border-color: var(--accent); }
.badge { display: inline-block; font-size: .78rem; font-weight: 600; padding: .05rem .5rem; border-radius: 99px;
  border: 1px solid currentColor; color: var(--soft); white-space: nowrap; }
.badge.good { color: var(--good); } .badge.bad { color: var(--bad); } .badge.busy { color: var(--busy); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 1rem 1.1rem;
  margin-bottom: 1rem; box-sizing: border-box; }
.filters { display: grid; grid-template-columns: 2fr 1fr 1fr 1fr; gap: .6rem; margin: 1rem 0; }
.filters.two { grid-template-columns: 1fr 1fr 2fr; }
.q-field { font-size: .95rem; } .q-field__control { background: var(--card); border-radius: 9px; }
table.list { width: 100%; border-collapse: collapse; }
table.list th { text-align: left; font-size: .8rem; font-weight: 600; color: var(--soft); padding: .5rem .75rem;
  border-bottom: 1px solid var(--line); }
table.list td { padding: .6rem .75rem; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
table.list tr:last-child td { border-bottom: 0; }
table.list .number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
table.list a { font-weight: 550; }
table.list .button { white-space: nowrap; }
.clip { display: -webkit-box; -webkit-line-clamp: 2; -webkit-box-orient: vertical; overflow: hidden; unicode-bidi:
  isolate; }
.panel { padding: 0; overflow: hidden; }
.empty { padding: 2.5rem 1rem; text-align: center; color: var(--soft); }
pre.text, p.text, div.text { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font: inherit;
  unicode-bidi: plaintext; tab-size: 4; }
pre.text.code { font: .84rem/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; background: var(--code);
  border-radius: 8px; padding: .6rem .75rem; max-height: 26rem; overflow: auto; }
.talk { display: grid; grid-template-columns: minmax(0, 1fr); gap: 1.25rem; align-items: start; }
.talk.open { grid-template-columns: minmax(0, 1fr) minmax(20rem, 26rem); }
.turn { margin-bottom: 1.4rem; }
.said { padding: .7rem .95rem; border-radius: 14px; margin: .45rem 0; background: var(--card);
  border: 1px solid var(--line); }
.said.mine { background: var(--mine); border-color: transparent; margin-left: 3rem; }
.said.answer { margin-right: 3rem; }
.said.tool, .said.thought, .said.note { margin-right: 3rem; background: none; border-style: dashed; color: var(--soft);
  padding: .45rem .95rem; }
.said > .who { font-size: .78rem; font-weight: 600; color: var(--soft); margin-bottom: .1rem; }
.said .picture { display: block; max-width: 100%; max-height: 24rem; border-radius: 8px; margin-bottom: .2rem; }
.attach { display: inline-block; } .attach input { position: absolute; width: 1px; height: 1px; opacity: 0; }
.attach:focus-within { outline: 3px solid var(--accent); outline-offset: 2px; }
.attach:has(input:disabled) { opacity: .5; }
.sign { font-size: 1rem; line-height: 1; vertical-align: middle; }
.attached:empty { display: none; }
details.files { margin-bottom: 1rem; }
details > summary { cursor: pointer; color: var(--soft); font-size: .88rem; font-weight: 550; }
summary .small { font-weight: 400; }
details[open] > summary { margin-bottom: .4rem; }
.foot { display: flex; flex-wrap: wrap; gap: .3rem .7rem; align-items: center; color: var(--soft); font-size: .82rem; }
.live .caret { display: inline-block; width: .5em; height: 1em; background: var(--accent); vertical-align: -.15em;
  animation: blink 1.1s steps(2) infinite; }
@keyframes blink { 50% { opacity: 0; } }
@media (prefers-reduced-motion: reduce) { .live .caret { animation: none; } }
.ask { border-color: var(--busy); }
.composer { position: sticky; bottom: 0; background: var(--paper); padding: .6rem 0 1rem; z-index: 5; }
.composer .q-field { width: 100%; } .composer textarea { max-height: 40vh; }
aside.side { position: sticky; top: 4.2rem; max-height: calc(100vh - 5.4rem); overflow: auto; margin: 0; }
dl.facts { display: grid; grid-template-columns: auto minmax(0, 1fr); gap: .2rem .9rem; margin: 0 0 .8rem; }
dl.facts dt { color: var(--soft); font-weight: 500; } dl.facts dd { margin: 0; overflow-wrap: anywhere; }
ol.steps { list-style: none; margin: 0 0 1rem; padding: 0; }
ol.steps li { padding: .35rem 0 .35rem .8rem; border-left: 2px solid var(--line); position: relative; }
ol.steps li.inner { margin-left: 1.1rem; }
ul.tree { list-style: none; margin: 0 0 1rem; padding: 0; }
ul.tree li { display: flex; flex-wrap: wrap; gap: .1rem .6rem; align-items: baseline; padding: .25rem 0 .25rem .8rem;
  border-left: 2px solid var(--line); overflow-wrap: anywhere; }
.meter { height: 8px; background: var(--code); border-radius: 99px; overflow: hidden; margin: .25rem 0; position:
  relative; }
.meter > span { position: absolute; top: 0; bottom: 0; border-radius: 99px; background: var(--accent); }
.meter > span.bad { background: var(--bad); } .meter > span.busy { background: var(--busy); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem; margin-bottom: 1rem; }
.tile { margin: 0; } .tile .value { font-size: 1.45rem; font-weight: 650; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.columns { display: flex; align-items: flex-end; gap: 3px; height: 150px; }
.columns > div { flex: 1; background: var(--accent); border-radius: 4px 4px 0 0; min-height: 1px; }
.columns > div:hover { opacity: .75; }
.axis { display: flex; justify-content: space-between; color: var(--soft); font-size: .8rem; margin-top: .3rem; }
dialog.box { border: 1px solid var(--line); border-radius: 14px; background: var(--card); color: var(--ink);
  width: min(34rem, calc(100vw - 2rem)); padding: 1.2rem; }
dialog.box::backdrop { background: rgb(0 0 0 / .45); }
@media (max-width: 1000px) {
  .talk.open { grid-template-columns: minmax(0, 1fr); }
  .talk.open > section, .talk.open ~ .composer { display: none; }
  aside.side { position: static; max-height: none; }
}
@media (max-width: 700px) {
  header.bar { flex-wrap: wrap; gap: .35rem .8rem; padding: .5rem .8rem; }
  header.bar .brand { flex: 1; }
  header.bar nav { order: 5; flex-basis: 100%; overflow-x: auto; }
  header.bar nav a { padding: .3rem .6rem; }
  .content { padding: .9rem .8rem; }
  .filters, .filters.two { grid-template-columns: 1fr 1fr; }
  .filters > :first-child, .filters > :nth-child(4) { grid-column: 1 / -1; }
  .heading > .grow { flex-basis: 100%; } .hint { display: none; }
  .said.mine { margin-left: 1.2rem; } .said.answer, .said.tool, .said.thought, .said.note { margin-right: 0; }
  table.list thead { position: absolute; left: -9999px; }
  table.list, table.list tbody, table.list tr, table.list td { display: block; }
  table.list tr { padding: .7rem .9rem; border-bottom: 1px solid var(--line); }
  table.list tr:last-child { border-bottom: 0; }
  table.list td { padding: .08rem 0; border: 0; }
  table.list td:not(:first-child) { display: inline-block; margin-right: .8rem; font-size: .88rem; }
  table.list .number { text-align: left; }
  table.list td[data-name]::before { content: attr(data-name) ": "; color: var(--soft); }
}
</style>"""
