-- Queries on replays, each with a name and a sentence on what it is for.

-- name: live
-- The live subscription of a handler to a topic, and the topic.
SELECT subscription.id, topic.id, topic.name, topic.partitions, handler.id FROM subscription
JOIN handler ON handler.id = subscription.handler JOIN topic ON topic.id = subscription.topic
WHERE handler.name = ? AND topic.name = ? AND kind = 'live';
-- name: was_live
-- Whether a handler has been retired from a topic.
SELECT 1 FROM subscription JOIN handler ON handler.id = subscription.handler
JOIN topic ON topic.id = subscription.topic WHERE handler.name = ? AND topic.name = ? AND kind = 'retired';
-- name: positions
-- How far live has come in each partition.
SELECT tp, start, claimed_after FROM position WHERE sub = ? ORDER BY tp;
-- name: open
-- What live has open below that.
SELECT tp, seq FROM open WHERE sub = ? ORDER BY tp, seq;
-- name: ranges
-- Version ranges of live.
SELECT tp, after, version FROM range WHERE sub = ? ORDER BY tp, after;
-- name: exceptions
-- Offsets that another version than their range's has finished.
SELECT tp, seq, version FROM exception WHERE sub = ? ORDER BY tp, seq;
-- name: dead
-- Dead letters of live that count.
SELECT tp, seq, version FROM dead WHERE sub = ? AND (fate IS NULL OR fate <> 'redriven') ORDER BY tp, seq;
-- name: taken
-- What other replays of a ledger were allotted for a version.
SELECT allotted.tp, allotted.after, allotted.upto FROM replay JOIN subscription ON subscription.id = replay.sub
JOIN allotted ON allotted.sub = replay.sub
WHERE subscription.handler = ? AND subscription.topic = ? AND replay.version = ? AND replay.again IS ?
ORDER BY allotted.tp, allotted.after;
-- name: last_offset
-- The highest offset.
SELECT coalesce(max(seq), 0) FROM event;
-- name: epoch
-- The epoch of a model by its bytes, and the one that it would get.
SELECT (SELECT epoch FROM model WHERE name = ?1 AND digest = ?2),
(SELECT coalesce(max(epoch), 0) + 1 FROM model WHERE name = ?1);

-- name: events
-- Offset and place of the events of a topic between two offsets.
SELECT seq, tp FROM event WHERE tp >> 10 = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?;
-- name: heads
-- Envelopes of the events of a topic between two offsets.
SELECT seq, head FROM event WHERE tp >> 10 = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?;
-- name: chain
-- Offsets of the events of a topic that belong to the chain of an event.
WITH root (seq) AS (SELECT CASE cid WHEN 0 THEN seq ELSE cid END FROM event WHERE eid = ?1 ORDER BY event.seq LIMIT 1)
SELECT event.seq FROM root CROSS JOIN event ON event.seq = root.seq WHERE tp >> 10 = ?2
UNION SELECT event.seq FROM root CROSS JOIN event ON event.cid = root.seq AND event.cid <> 0 WHERE tp >> 10 = ?2
ORDER BY 1;

-- name: same
-- Replays of one order, newest first, with what they were allotted and have passed over.
SELECT replay.sub, replay.allotted, replay.skipped FROM replay JOIN subscription ON subscription.id = replay.sub
WHERE subscription.handler = ? AND subscription.topic = ? AND replay.version = ? AND replay.side IS ?
AND replay.again IS ? AND replay.wanted = ? ORDER BY replay.sub DESC;
-- name: subscription_add
-- Begin a further subscription of a handler.
INSERT INTO subscription (handler, topic, kind, created_us)
VALUES (?1, ?2, 'replay:' || (SELECT coalesce(max(id), 0) + 1 FROM subscription), ?3) RETURNING id;
-- name: replay_add
-- Note what a replay is.
INSERT INTO replay (sub, version, side, again, wanted, follow, allotted, skipped, created_us)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);
-- name: allot
-- Hand offsets to a replay.
INSERT INTO allotted (sub, tp, after, upto) VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET upto = excluded.upto;
-- name: allot_on
-- Make what was handed out last longer, where the new part follows on it.
UPDATE allotted SET upto = ?4 WHERE sub = ?1 AND tp = ?2 AND upto = ?3 AND after < upto RETURNING upto;
-- name: allot_looked
-- A mark of how far was looked is no longer needed.
DELETE FROM allotted WHERE sub = ? AND tp = ? AND after = ? AND upto = after;
-- name: replay_grows
-- Count events that a replay was allotted later.
UPDATE replay SET allotted = allotted + ? WHERE sub = ?;
-- name: replay_emitted
-- Count events that follow from those of a replay.
UPDATE replay SET emitted = emitted + ? WHERE sub = ?;
-- name: order_of
-- What a replay is about.
SELECT version, again, wanted FROM replay WHERE sub = ?;
-- name: ends
-- How far each partition of a replay goes at present.
SELECT tp, max(upto) FROM allotted WHERE sub = ? GROUP BY tp;
-- name: state
-- How far a replay is; it is complete when nothing is open, in hand, or above a position.
SELECT replay.allotted, replay.emitted, sum(running), sum(done), sum(dead), sum(expired),
NOT EXISTS (SELECT 1 FROM open WHERE open.sub = replay.sub) AND sum(running) = 0
AND NOT EXISTS (SELECT 1 FROM position AS at WHERE at.sub = replay.sub
    AND at.high < (SELECT max(upto) FROM allotted WHERE allotted.sub = at.sub AND allotted.tp = at.tp))
FROM replay JOIN position ON position.sub = replay.sub WHERE replay.sub = ? GROUP BY replay.sub;
-- name: live_load
-- How many events live handlers have taken, and have in hand.
SELECT coalesce(sum(taken), 0), coalesce(sum(running), 0) FROM position
JOIN subscription ON subscription.id = position.sub WHERE kind = 'live';

-- name: claim_rows
-- The next events of a topic that a replay was allotted, in commit order over its partitions.
SELECT seq, tp, eid, CASE cid WHEN 0 THEN seq ELSE cid END, depth, head, body FROM event
WHERE tp >> 10 = ?1 AND seq > ?2 AND seq <= ?5 AND seq <= (
    SELECT upto FROM allotted WHERE sub = ?4 AND tp = event.tp AND after < event.seq ORDER BY after DESC LIMIT 1)
ORDER BY seq LIMIT ?3;
-- name: claim_rows_behind
-- The next events of one partition that a replay was allotted, between its position and the cursor of its worker.
SELECT seq, tp, eid, CASE cid WHEN 0 THEN seq ELSE cid END, depth, head, body FROM event
WHERE tp >> 10 = ?1 AND tp = ?2 AND seq > ?3 AND seq <= ?4 AND seq <= (
    SELECT upto FROM allotted WHERE sub = ?6 AND tp = ?2 AND after < event.seq ORDER BY after DESC LIMIT 1)
ORDER BY seq LIMIT ?5;
