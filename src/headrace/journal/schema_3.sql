-- Replays: history that is run through a version.

-- trial = 1: known to replays alone so far.
ALTER TABLE version ADD COLUMN trial INTEGER NOT NULL DEFAULT 0;

-- Further subscriptions, whose version is fixed.  side NULL = results go into the live topics.
-- again = the name of a ledger of its own; NULL = that of the handler, which the live subscription shares.
CREATE TABLE replay (
    sub INTEGER PRIMARY KEY,
    version INTEGER NOT NULL,
    side TEXT,
    again TEXT,
    wanted TEXT NOT NULL,
    follow INTEGER NOT NULL,
    allotted INTEGER NOT NULL,
    skipped TEXT NOT NULL,
    emitted INTEGER NOT NULL DEFAULT 0,
    created_us INTEGER NOT NULL
) STRICT;

-- The offsets (after, upto] of a partition that a replay has to handle, and no other of its ledger and version.
-- Where after = upto it holds none, and says how far was looked.
CREATE TABLE allotted (
    sub INTEGER NOT NULL,
    tp INTEGER NOT NULL,
    after INTEGER NOT NULL,
    upto INTEGER NOT NULL,
    PRIMARY KEY (sub, tp, after)
) WITHOUT ROWID, STRICT;
