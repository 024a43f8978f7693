-- Queries that return what must not be: no row means sound.  Each with a name and a sentence on the rule.

-- name: accounting
-- Taken = running + open that does not run + done + dead + expired.
SELECT sub, tp, taken, running, (SELECT count(*) FROM open WHERE open.sub = position.sub AND open.tp = position.tp
    AND state <> 'running') AS waiting, done, dead, expired
FROM position WHERE taken <> running + waiting + done + dead + expired;
-- name: starts
-- All positions of a subscription start at one offset.
SELECT sub, min(start), max(start) FROM position GROUP BY sub HAVING min(start) <> max(start);
-- name: taken
-- Published = waiting + taken: what lies between the start and the position, and what is gone, is what was taken.
-- What is gone is not counted for replays: of what they were allotted no more may be there than was taken.
WITH passed AS (
    SELECT position.sub AS sub, position.tp AS tp, count(*) AS passed FROM subscription
    CROSS JOIN event ON event.tp >> 10 = subscription.topic
    CROSS JOIN position ON position.sub = subscription.id AND position.tp = event.tp
    WHERE event.seq > position.start AND event.seq <= position.high
    AND (subscription.kind IN ('live', 'retired') OR event.seq <= (SELECT upto FROM allotted
        WHERE allotted.sub = position.sub AND allotted.tp = position.tp AND after < event.seq ORDER BY after DESC LIMIT 1))
    GROUP BY position.sub, position.tp)
SELECT position.sub, position.tp, coalesce(passed, 0) + gone, taken FROM position
LEFT JOIN passed ON passed.sub = position.sub AND passed.tp = position.tp WHERE coalesce(passed, 0) + gone > taken
OR coalesce(passed, 0) + gone < taken AND NOT EXISTS (SELECT 1 FROM replay WHERE replay.sub = position.sub);
-- name: bounds
-- Start <= claimed <= high.
SELECT sub, tp, start, claimed_after, high FROM position WHERE NOT start <= claimed_after OR NOT claimed_after <= high;
-- name: running
-- Running = open offsets that run + the claimed range without those that stand open.
SELECT sub, tp, running, (SELECT count(*) FROM open WHERE open.sub = position.sub AND open.tp = position.tp
    AND state = 'running') + (SELECT count(*) FROM event WHERE event.tp >> 10 = position.tp >> 10 AND event.tp = position.tp
    AND event.seq > claimed_after
    AND event.seq <= high AND NOT EXISTS (SELECT 1 FROM open WHERE open.sub = position.sub AND open.tp = position.tp
    AND open.seq = event.seq)
    AND (NOT EXISTS (SELECT 1 FROM replay WHERE replay.sub = position.sub) OR event.seq <= (SELECT upto FROM allotted
        WHERE allotted.sub = position.sub AND allotted.tp = position.tp AND after < event.seq
        ORDER BY after DESC LIMIT 1))) AS flying
FROM position WHERE running <> flying;
-- name: ownerless
-- What nobody owns does not run.
SELECT sub, tp, running FROM position WHERE owner IS NULL AND running <> 0;
-- name: open_place
-- An open offset is an event of its partition, above the start and not above the position.
SELECT open.sub, open.tp, open.seq, open.state FROM open
LEFT JOIN position ON position.sub = open.sub AND position.tp = open.tp
LEFT JOIN event ON event.seq = open.seq AND event.tp = open.tp
WHERE position.sub IS NULL OR event.seq IS NULL OR open.seq > position.high OR open.seq <= position.start;
-- name: dead_count
-- Each event counted as dead has one dead letter that was neither redriven nor tells of an expired event.
SELECT sub, tp, dead, (SELECT count(*) FROM dead AS letter WHERE letter.sub = position.sub AND letter.tp = position.tp
    AND (fate IS NULL OR fate NOT IN ('redriven', 'expired'))) AS letters
FROM position WHERE dead <> letters;
-- name: dead_place
-- A dead letter that counts belongs to an offset that was taken, and does not stand open.
SELECT dead.id, dead.sub, dead.seq FROM dead
LEFT JOIN position ON position.sub = dead.sub AND position.tp = dead.tp
WHERE (dead.fate IS NULL OR dead.fate <> 'redriven')
AND (position.sub IS NULL OR dead.seq > position.high AND dead.fate IS NOT 'expired'
    OR EXISTS (SELECT 1 FROM open WHERE open.sub = dead.sub AND open.tp = dead.tp AND open.seq = dead.seq));
-- name: dead_twice
-- An offset has one dead letter that counts, the last one.
SELECT sub, seq, count(*) FROM dead WHERE (fate IS NULL OR fate <> 'redriven') GROUP BY sub, seq HAVING count(*) > 1;
-- name: ranges
-- Every offset taken lies in a version range.
SELECT sub, tp, (SELECT event.seq FROM event WHERE event.tp >> 10 = position.tp >> 10 AND event.tp = position.tp
    AND event.seq > start AND event.seq <= high ORDER BY event.seq LIMIT 1) AS first,
(SELECT min(after) FROM range WHERE range.sub = position.sub AND range.tp = position.tp) AS covered
FROM position WHERE taken > gone AND first IS NOT NULL AND (covered IS NULL OR covered >= first);
-- name: range_place
-- A version range begins within the position and names a version of the subscription's handler.
SELECT range.sub, range.tp, range.after, range.version FROM range
LEFT JOIN position ON position.sub = range.sub AND position.tp = range.tp
LEFT JOIN subscription ON subscription.id = range.sub
LEFT JOIN version ON version.id = range.version AND version.handler = subscription.handler
WHERE position.sub IS NULL OR version.id IS NULL OR range.after < position.start OR range.after > position.high;
-- name: exception_place
-- An exception row belongs to an offset that was taken and names a version of the subscription's handler.
SELECT exception.sub, exception.tp, exception.seq, exception.version FROM exception
LEFT JOIN position ON position.sub = exception.sub AND position.tp = exception.tp
LEFT JOIN subscription ON subscription.id = exception.sub
LEFT JOIN version ON version.id = exception.version AND version.handler = subscription.handler
LEFT JOIN event ON event.seq = exception.seq AND event.tp = exception.tp
LEFT JOIN skeleton ON skeleton.seq = exception.seq AND skeleton.tp = exception.tp
WHERE position.sub IS NULL OR version.id IS NULL OR exception.seq <= position.start OR exception.seq > position.high
OR event.seq IS NULL AND skeleton.seq IS NULL AND exception.seq > (
    SELECT coalesce(max(value), 0) FROM meta WHERE name = 'forgotten');
-- name: replay_count
-- A replay was allotted the events that lie in what it was allotted, but for those that are gone since.
SELECT replay.sub, replay.allotted, (SELECT count(*) FROM allotted JOIN subscription ON subscription.id = allotted.sub
    JOIN event ON event.tp >> 10 = subscription.topic AND event.tp = allotted.tp AND event.seq > after
    AND event.seq <= upto WHERE allotted.sub = replay.sub) AS found
FROM replay WHERE replay.allotted < found;
-- name: replay_version
-- A replay runs a version of its own handler, and its ranges name no other.
SELECT replay.sub, replay.version FROM replay JOIN subscription ON subscription.id = replay.sub
LEFT JOIN version ON version.id = replay.version AND version.handler = subscription.handler
WHERE version.id IS NULL OR EXISTS (SELECT 1 FROM range WHERE range.sub = replay.sub AND range.version <> replay.version);
-- name: replay_twice
-- No two replays of a ledger were allotted one offset for one version.
SELECT one.sub, one.tp, other.sub, max(one.after, other.after) + 1 FROM allotted AS one JOIN replay ON replay.sub = one.sub
JOIN subscription ON subscription.id = one.sub JOIN replay AS second ON second.sub > replay.sub
AND second.version = replay.version AND second.again IS replay.again
JOIN subscription AS beside ON beside.id = second.sub AND beside.topic = subscription.topic
JOIN allotted AS other ON other.sub = second.sub AND other.tp = one.tp AND other.after < one.upto AND one.after < other.upto;
-- name: live_twice
-- No version has finished an event live and in a replay that shares the ledger.
SELECT replay.sub, event.tp, event.seq FROM replay JOIN subscription ON subscription.id = replay.sub
JOIN subscription AS live ON live.handler = subscription.handler AND live.topic = subscription.topic AND live.kind = 'live'
JOIN allotted ON allotted.sub = replay.sub
JOIN event ON event.tp >> 10 = live.topic AND event.tp = allotted.tp AND event.seq > after AND event.seq <= upto
WHERE replay.again IS NULL
AND replay.version = coalesce(
    (SELECT version FROM exception WHERE sub = live.id AND tp = event.tp AND seq = event.seq),
    (SELECT version FROM range WHERE sub = live.id AND tp = event.tp AND after < event.seq ORDER BY after DESC LIMIT 1))
AND NOT EXISTS (SELECT 1 FROM open WHERE sub = live.id AND tp = event.tp AND seq = event.seq)
AND NOT EXISTS (SELECT 1 FROM dead WHERE sub IN (live.id, replay.sub) AND seq = event.seq
    AND (fate IS NULL OR fate <> 'redriven'));
-- name: active
-- The active version of a handler is one of its own.
SELECT handler.id, handler.name, handler.active FROM handler
LEFT JOIN version ON version.id = handler.active AND version.handler = handler.id
WHERE handler.active IS NOT NULL AND version.id IS NULL;
-- name: positions
-- A subscription has a position for each partition of its topic.
SELECT subscription.id, topic.partitions, (SELECT count(*) FROM position WHERE position.sub = subscription.id
    AND position.tp >> 10 = topic.id) AS found
FROM subscription LEFT JOIN topic ON topic.id = subscription.topic WHERE topic.id IS NULL OR found <> topic.partitions;
-- name: event_place
-- An event lies in a partition that its topic has.
SELECT seq, tp FROM event WHERE NOT EXISTS (
    SELECT 1 FROM topic WHERE topic.id = event.tp >> 10 AND event.tp & 1023 < topic.partitions);
-- name: chains
-- An event that has causes belongs to the chain of an earlier event that is the first of its chain; of one that
-- was removed long ago nothing may be left.
SELECT event.seq, event.cid FROM event LEFT JOIN event AS root ON root.seq = event.cid
LEFT JOIN skeleton ON skeleton.seq = event.cid
WHERE event.cid <> 0 AND (event.cid >= event.seq OR root.cid <> 0 OR skeleton.cid <> 0
    OR root.seq IS NULL AND skeleton.seq IS NULL AND event.cid > (
        SELECT coalesce(max(value), 0) FROM meta WHERE name = 'forgotten'));
-- name: remains
-- What is left of a removed event is all there is of it, and lies in a partition that its topic has.
SELECT skeleton.seq, skeleton.tp FROM skeleton
WHERE EXISTS (SELECT 1 FROM event WHERE event.seq = skeleton.seq)
OR EXISTS (SELECT 1 FROM event WHERE event.eid = skeleton.eid AND event.tp >> 10 = skeleton.tp >> 10)
OR NOT EXISTS (SELECT 1 FROM topic WHERE topic.id = skeleton.tp >> 10 AND skeleton.tp & 1023 < topic.partitions);
-- name: sizes
-- The size of a topic with a retention is that of its events, as far as they were counted.
SELECT topic.id, retention.bytes, (SELECT coalesce(sum(length(head) + length(body)), 0) FROM event
    WHERE event.tp >> 10 = topic.id AND event.seq <= retention.counted) AS found
FROM retention JOIN topic ON topic.id = retention.topic WHERE bytes <> found;

-- name: page
-- Events above an offset, with their checksums, up to a second offset.
SELECT seq, eid, depth, head, body, sum, cid FROM event WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?;
-- name: cause
-- Offset and depth of the first event of an id, or of what is left of it.
SELECT seq, depth FROM event WHERE eid = ?1
UNION ALL SELECT seq, depth FROM skeleton WHERE eid = ?1 ORDER BY seq LIMIT 1;
-- name: forgotten
-- The highest offset that nothing is left of: causes at or below it may be missing.
SELECT coalesce(max(value), 0) FROM meta WHERE name = 'forgotten';
-- name: quick_check
-- What SQLite itself finds wrong with the file.
PRAGMA quick_check(20);
