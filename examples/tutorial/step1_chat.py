"""Step 1 of the tutorial: a chat that streams its answers, can be stopped, and goes on after a kill.

    pip install turnwise
    python step1_chat.py "We take the night train to Paris."

Its page is docs/tutorial/chat.md.
"""

import sys

from turnwise import EchoEngine, InProcess, SessionConfig, SessionManager

engine = EchoEngine(token_delay_s=0.2)  # repeats the prompt; OpenAIEngine("gpt-5-mini") asks a model
config = SessionConfig(on_lost="resume")  # what a kill has interrupted begins again in the next program
prompts = sys.argv[1:] or ["We take the night train to Paris."]

with SessionManager("sqlite:///tutorial.db", engine=engine, placement=InProcess(), config=config) as manager:
    chat = manager.open("trip", user_id="sarah")  # get or create
    unfinished = [chat.execution(record.run_id) for record in chat.runs() if record.state in ("queued", "running")]
    for run in [*unfinished, *(chat.run(prompt, if_busy="enqueue") for prompt in prompts)]:
        try:
            for event in run.events():
                print(event.text if event.kind == "text_delta" else "", end="", flush=True)
        except KeyboardInterrupt:
            run.cancel(reason="stopped by the user")  # what was said is kept
        print()
    print(*(f"{message.role}: {message.text}" for message in chat.messages()), sep="\n")
