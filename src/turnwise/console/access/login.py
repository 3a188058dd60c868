"""The login page: plain HTML without a script."""

LOGIN = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Log in · turnwise</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<meta name="color-scheme" content="light dark">
<style>
:root { color-scheme: light dark; --ink: #1a2230; --paper: #f5f6f8; --card: #fff; --line: #d5dae2; --accent: #2456c7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf1; --paper: #10141b; --card: #181e28; --line: #303948; --accent: #7da2ff; }
}
body { margin: 0; min-height: 100vh; display: grid; place-items: center; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
form { width: min(22rem, calc(100vw - 3rem)); padding: 1.75rem; border: 1px solid var(--line); border-radius: 14px;
  background: var(--card); display: grid; gap: .75rem; }
h1 { font-size: 1.15rem; margin: 0; }
input, button { font: inherit; padding: .6rem .75rem; border-radius: 9px; border: 1px solid var(--line);
  background: var(--paper); color: inherit; }
button { background: var(--accent); border-color: var(--accent); color: var(--card); font-weight: 600;
  cursor: pointer; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
p { margin: 0; color: #c02b2b; min-height: 1.5em; }
@media (prefers-color-scheme: dark) { p { color: #ff8f8f; } }
</style>
</head>
<body>
<main>
<form method="post" action="{action}">
<h1>turnwise console</h1>
<label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required autofocus>
<button>Log in</button>
<p role="alert">{why}</p>
</form>
</main>
</body>
</html>
"""
