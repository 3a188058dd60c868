"""A fault harness for sessions, stores and engines, for turnwise's own tests and for yours. Needs no test framework.

Imported only on purpose: `import turnwise` does not. Each name is imported from its module:

- `loop`: `VirtualLoop`, whose clock jumps; `process`: what can be killed on it, at any step;
- `schedules`: `explore` and `spread` run a schedule under many seeds, and a failure names its seed;
- `faults`: `FaultPlan`, what is to go wrong, as a value; `Faults`, which carries it out and counts;
- `faulty_store`, `faulty_url`: `FaultyStore` around any store, also by URL; `faulty_engine`: `FaultyEngine`;
- `world`: `World`, a session on all of that, with a caller who asks again; `exhaust`: each fault at each point in turn;
- `acknowledged`: `Acknowledged`, the record of what callers were told; `audit`: whether a store still has all of it;
- `chaos`, with `workload`, `killers` and `report`: the same on Ray, with real kills.
"""
