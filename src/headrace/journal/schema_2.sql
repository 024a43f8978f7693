-- Schema 2: what is left of events whose payload is gone, how long topics keep events, former names of handlers.

-- Of an event whose payload was removed: enough to know its id again, and to draw the tree of causes.
-- content = hash of key and payload, owner = salted hash of the key, both empty when they were erased;
-- why = 'retention' or 'erased'.
CREATE TABLE skeleton (
    seq INTEGER PRIMARY KEY,
    tp INTEGER NOT NULL,
    eid BLOB NOT NULL,
    cid INTEGER NOT NULL,
    depth INTEGER NOT NULL,
    head BLOB NOT NULL,
    content BLOB NOT NULL,
    owner BLOB NOT NULL,
    why TEXT NOT NULL,
    removed_us INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX skeleton_id ON skeleton (eid, tp >> 10);
CREATE INDEX skeleton_chain ON skeleton (cid, depth) WHERE cid <> 0;
CREATE INDEX skeleton_removed ON skeleton (removed_us);

-- What "owner" is salted with: who has the journal alone cannot look keys up that were met elsewhere.
INSERT INTO meta (name, value) VALUES ('salt', randomblob(16));

-- How long a topic keeps events, as an app has declared it; bytes = size of its events up to the offset counted.
CREATE TABLE retention (
    topic INTEGER PRIMARY KEY,
    app TEXT NOT NULL,
    age_us INTEGER,
    bytes_max INTEGER,
    swept_us INTEGER NOT NULL,
    counted INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;

-- Names that a handler had before it was renamed.
CREATE TABLE was (name TEXT PRIMARY KEY, handler INTEGER NOT NULL, renamed_us INTEGER NOT NULL) WITHOUT ROWID, STRICT;

-- Events that a subscription has closed and that are no longer in "event".
ALTER TABLE position ADD COLUMN gone INTEGER NOT NULL DEFAULT 0;
-- Of a version range.
ALTER TABLE range ADD COLUMN gone INTEGER NOT NULL DEFAULT 0;
