"""Step 3 of the tutorial: a memory that one user's chats share, and that forgets on request.

    pip install turnwise
    python step3_memory.py

Its page is docs/tutorial/memory.md.
"""

from turnwise import EchoEngine, InProcess, LexicalMemory, SessionManager, StaticMemory

handbook = StaticMemory(["Parental leave is 14 weeks for everyone."])  # facts for all users
said = LexicalMemory("memory.db")  # what each user has said, found by words

with SessionManager(
    "sqlite:///tutorial.db", engine=EchoEngine(), placement=InProcess(), memory=[handbook, said]
) as manager:
    monday = manager.open(user_id="sarah")
    monday.run("My parental leave begins on 2 March.").wait()
    monday.memory.wait()  # until it is saved; no run waits for that

    friday = manager.open(user_id="sarah")  # another chat
    run = friday.run("When does my parental leave begin?")
    run.wait()
    for event in run.events():
        if event.kind == "memory_recalled":
            print("The model was told:", event.sent)

    other = manager.open(user_id="tom")
    print("Tom finds:", [item.text for item in other.memory.recall("parental leave")])
    print("Forgotten, and looked for afterwards:", manager.forget("sarah").verified)
