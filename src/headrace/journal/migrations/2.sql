-- From schema 1 to schema 2: history that is run through a version.

ALTER TABLE version ADD COLUMN trial INTEGER NOT NULL DEFAULT 0;

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

CREATE TABLE allotted (
    sub INTEGER NOT NULL,
    tp INTEGER NOT NULL,
    after INTEGER NOT NULL,
    upto INTEGER NOT NULL,
    PRIMARY KEY (sub, tp, after)
) WITHOUT ROWID, STRICT;
