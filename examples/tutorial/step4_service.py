"""Step 4 of the tutorial: a service for two users, with a console in the browser.

    pip install 'turnwise[console]'
    python step4_service.py

Its page is docs/tutorial/service.md.
"""

import sys

import uvicorn

from turnwise import AsyncSessionManager, EchoEngine, InProcess, SessionConfig
from turnwise.console import mount
from turnwise.http import BearerTokens, create_app

tokens = {"a-long-secret-of-sarah": "sarah", "a-long-secret-of-tom": "tom"}
config = SessionConfig(on_lost="resume")  # what a stop has interrupted begins again at the next start
engine = EchoEngine(token_delay_s=0.1)
manager = AsyncSessionManager("sqlite:///tutorial.db", engine=engine, placement=InProcess(), config=config)
app = create_app(manager, auth=BearerTokens(tokens))
mount(app, app.state.service, "/console")

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if sys.argv[1:] else 8000, log_level="warning")
