-- The embedded journal, schema 1.  Numbers: seq = offset, grows in commit order; tp = topic id * 1024 + partition.

CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) WITHOUT ROWID, STRICT;

CREATE TABLE topic (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    uuid BLOB NOT NULL,
    partitions INTEGER NOT NULL,
    created_us INTEGER NOT NULL
) STRICT;

-- Whatever is the same for all events of one publisher or handler version, as a msgpack array.
CREATE TABLE stamp (id INTEGER PRIMARY KEY, value BLOB NOT NULL UNIQUE) STRICT;

-- cid = seq of the first event of the chain, 0 when the event is that itself; sum = checksum of eid, head, body.
CREATE TABLE event (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    tp INTEGER NOT NULL,
    eid BLOB NOT NULL,
    cid INTEGER NOT NULL,
    depth INTEGER NOT NULL,
    head BLOB NOT NULL,
    body BLOB NOT NULL,
    sum INTEGER NOT NULL
) STRICT;
CREATE INDEX event_topic ON event (tp >> 10);
CREATE UNIQUE INDEX event_id ON event (eid, tp >> 10);
CREATE INDEX event_chain ON event (cid, depth) WHERE cid <> 0;

-- Epochs of a model: the same bytes never become a new version.
CREATE TABLE model (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    declared TEXT,
    digest TEXT NOT NULL,
    offered_us INTEGER NOT NULL,
    UNIQUE (name, digest),
    UNIQUE (name, epoch)
) STRICT;

CREATE TABLE handler (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, active INTEGER) STRICT;

-- A handler version = its declared version + its model (0 = none).
CREATE TABLE version (
    id INTEGER PRIMARY KEY,
    handler INTEGER NOT NULL,
    declared TEXT NOT NULL,
    model INTEGER NOT NULL,
    offered_us INTEGER NOT NULL,
    UNIQUE (handler, declared, model)
) STRICT;

CREATE TABLE subscription (
    id INTEGER PRIMARY KEY,
    handler INTEGER NOT NULL,
    topic INTEGER NOT NULL,
    kind TEXT NOT NULL,
    created_us INTEGER NOT NULL,
    UNIQUE (handler, topic, kind)
) STRICT;

-- A worker process.  Leases are in nanoseconds of the boot clock and die with the boot.
CREATE TABLE worker (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    pid INTEGER NOT NULL,
    boot TEXT NOT NULL,
    lease_until_ns INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL,
    started_us INTEGER NOT NULL,
    left_us INTEGER
) STRICT;

CREATE TABLE member (sub INTEGER NOT NULL, worker INTEGER NOT NULL, PRIMARY KEY (sub, worker)) WITHOUT ROWID, STRICT;

-- Progress of a subscription over one partition.  (claimed_after, high] is the one claimed range that no
-- outcome has touched; everything else up to high is closed or stands in open.
-- taken = running + (open that does not run) + done + dead + expired, at every commit.
CREATE TABLE position (
    sub INTEGER NOT NULL,
    tp INTEGER NOT NULL,
    start INTEGER NOT NULL,
    owner INTEGER,
    epoch INTEGER NOT NULL DEFAULT 0,
    high INTEGER NOT NULL,
    claimed_after INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    taken INTEGER NOT NULL DEFAULT 0,
    running INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    expired INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (sub, tp)
) WITHOUT ROWID, STRICT;

-- Offsets below high that are not finished.
CREATE TABLE open (
    sub INTEGER NOT NULL,
    tp INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    due_us INTEGER NOT NULL,
    noted_us INTEGER NOT NULL,
    errors TEXT NOT NULL,
    PRIMARY KEY (sub, tp, seq)
) WITHOUT ROWID, STRICT;
CREATE INDEX open_redriven ON open (sub, tp) WHERE state = 'redriven';

-- Which version takes the offsets above "after", up to the next range of the partition.
CREATE TABLE range (
    sub INTEGER NOT NULL,
    tp INTEGER NOT NULL,
    after INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (sub, tp, after)
) WITHOUT ROWID, STRICT;

-- Offsets whose final outcome came from another version than their range's.
CREATE TABLE exception (
    sub INTEGER NOT NULL,
    tp INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (sub, tp, seq)
) WITHOUT ROWID, STRICT;

-- Dead letters.  fate is NULL, 'redriven' or 'dropped'.
CREATE TABLE dead (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    sub INTEGER NOT NULL,
    tp INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    version INTEGER NOT NULL,
    reason TEXT NOT NULL,
    code TEXT NOT NULL,
    error TEXT NOT NULL,
    traceback TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    crashes INTEGER NOT NULL,
    errors TEXT NOT NULL,
    eid BLOB NOT NULL,
    type TEXT NOT NULL,
    trace BLOB NOT NULL,
    head BLOB NOT NULL,
    body BLOB NOT NULL,
    died_us INTEGER NOT NULL,
    fate TEXT,
    UNIQUE (sub, seq, generation)
) STRICT;
