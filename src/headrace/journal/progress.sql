-- Queries on how far handlers have come, each with a name and a sentence on what it is for.

-- name: topics
-- All topics, how many events each holds, and how long.
SELECT name, partitions, (SELECT count(*) FROM event WHERE tp >> 10 = topic.id), age_us, bytes_max,
CASE WHEN bytes_max IS NOT NULL THEN bytes END
FROM topic LEFT JOIN retention ON retention.topic = topic.id ORDER BY name;
-- name: subscriptions
-- All live subscriptions, by handler.
SELECT subscription.id, handler.name, subscription.topic, handler.active FROM subscription
JOIN handler ON handler.id = subscription.handler WHERE kind = 'live' ORDER BY handler.name, subscription.topic;
-- name: counts
-- Per live subscription: partitions, published since its start, not taken yet, taken, running, done, dead, expired.
-- All its positions start at one offset; what is not taken lies above the lowest position.
WITH sums AS (
    SELECT sub, topic, count(*) AS partitions, min(start) AS start, min(high) AS high, sum(taken) AS taken,
    sum(running) AS running, sum(done) AS done, sum(dead) AS dead, sum(expired) AS expired, sum(gone) AS gone
    FROM position JOIN subscription ON subscription.id = position.sub WHERE kind IN ('live', 'retired') GROUP BY sub)
SELECT sub, partitions, (SELECT count(*) FROM event WHERE tp >> 10 = topic AND seq > start) + gone,
(SELECT count(*) FROM event CROSS JOIN position ON position.sub = sums.sub AND position.tp = event.tp
    WHERE event.tp >> 10 = topic AND event.seq > sums.high AND event.seq > position.high),
taken, running, done, dead, expired FROM sums;
-- name: replays
-- All replays, oldest first; one is complete when nothing is open, in hand, or above a position.
SELECT replay.sub, handler.name, subscription.topic, replay.version, side, again, follow, allotted, skipped, emitted,
sum(running), sum(done), sum(dead), sum(expired),
NOT EXISTS (SELECT 1 FROM open WHERE open.sub = replay.sub) AND sum(running) = 0
AND NOT EXISTS (SELECT 1 FROM position AS at WHERE at.sub = replay.sub
    AND at.high < (SELECT max(upto) FROM allotted WHERE allotted.sub = at.sub AND allotted.tp = at.tp)),
replay.created_us FROM replay JOIN subscription ON subscription.id = replay.sub
JOIN handler ON handler.id = subscription.handler JOIN position ON position.sub = replay.sub
GROUP BY replay.sub ORDER BY replay.sub;
-- name: open_counts
-- Per subscription and state: how many offsets are open.
SELECT sub, state, count(*) FROM open GROUP BY sub, state;
-- name: oldest_unfinished
-- Per subscription: the lowest offset that is not taken yet or stands open.
SELECT sub, min(seq) FROM (
    SELECT sums.sub, (SELECT event.seq FROM event CROSS JOIN position ON position.sub = sums.sub
        AND position.tp = event.tp WHERE event.tp >> 10 = topic AND event.seq > sums.high
        AND event.seq > position.high ORDER BY event.seq LIMIT 1) AS seq
    FROM (SELECT sub, topic, min(high) AS high FROM position
        JOIN subscription ON subscription.id = position.sub WHERE kind = 'live' GROUP BY sub) AS sums
    UNION ALL SELECT sub, seq FROM open)
GROUP BY sub HAVING min(seq) IS NOT NULL;
-- name: owners
-- Who holds the partitions of each subscription, and when the lease ends.
SELECT sub, worker.pid, worker.boot, worker.lease_until_ns, count(*) FROM position
JOIN worker ON worker.id = position.owner GROUP BY sub, worker.id ORDER BY sub, worker.id;
-- name: lags
-- Events that are not taken yet, by partition of one worker; so many at most are looked at.
SELECT ahead.tp & 1023, count(*) FROM (
    SELECT tp, seq FROM event WHERE tp >> 10 = ?2 AND seq > (
        SELECT min(high) FROM position WHERE sub = ?1 AND owner = ?3) ORDER BY seq LIMIT ?4) AS ahead
CROSS JOIN position ON position.sub = ?1 AND position.tp = ahead.tp
WHERE position.owner = ?3 AND ahead.seq > position.high GROUP BY ahead.tp;
-- name: held
-- The partitions of one worker.
SELECT tp & 1023 FROM position WHERE sub = ? AND owner = ?;
-- name: unowned
-- How many partitions nobody alive holds.
SELECT count(*) FROM position LEFT JOIN worker ON worker.id = position.owner
WHERE sub = ? AND (owner IS NULL OR worker.id IS NULL OR worker.boot <> ? OR worker.lease_until_ns <= ?);
-- name: members
-- Live workers that serve each subscription.
SELECT sub, count(*) FROM member JOIN worker ON worker.id = member.worker
WHERE worker.boot = ? AND worker.lease_until_ns > ? GROUP BY sub;
-- name: workers
-- How many workers are alive.
SELECT count(*) FROM worker WHERE boot = ? AND lease_until_ns > ?;

-- name: version_info
-- A handler version with its model.
SELECT version.id, handler.name, version.declared, model.name, model.digest, model.epoch, model.declared
FROM version JOIN handler ON handler.id = version.handler LEFT JOIN model ON model.id = version.model
WHERE version.id = ?;

-- name: positions_at
-- The positions that one offset matters to: of handlers, and of replays that were allotted it.
SELECT subscription.id, handler.name, coalesce(replay.version, handler.active), position.start, position.high,
position.claimed_after, position.owner,
(SELECT count(*) FROM open WHERE open.sub = position.sub AND open.tp = position.tp),
CASE WHEN replay.sub IS NULL THEN '' WHEN side IS NULL THEN 'live topics' ELSE 'side ' || side END,
coalesce(replay.created_us, 0)
FROM position JOIN subscription ON subscription.id = position.sub JOIN handler ON handler.id = subscription.handler
LEFT JOIN replay ON replay.sub = position.sub
WHERE position.tp = ?1 AND (subscription.kind <> 'retired' OR position.high >= ?2)
AND (replay.sub IS NULL OR ?2 <= (SELECT upto FROM allotted
    WHERE allotted.sub = replay.sub AND allotted.tp = ?1 AND after < ?2 ORDER BY after DESC LIMIT 1))
ORDER BY handler.name, subscription.id;
-- name: place_of
-- Topic and partition of an offset, why its payload is gone, and since when.
SELECT tp, '', 0 FROM event WHERE seq = ?1 UNION ALL SELECT tp, why, removed_us FROM skeleton WHERE seq = ?1;
-- name: worker
-- A worker by its number.
SELECT pid, boot, lease_until_ns FROM worker WHERE id = ?;
-- name: before
-- How many events of a partition come before an offset, above a position; for a replay of those it was allotted.
SELECT count(*) FROM event WHERE tp >> 10 = ?1 >> 10 AND tp = ?1 AND seq > ?2 AND seq < ?3
AND (?4 IS NULL OR seq <= (SELECT upto FROM allotted
    WHERE allotted.sub = ?4 AND allotted.tp = ?1 AND after < event.seq ORDER BY after DESC LIMIT 1));
-- name: open_at
-- One open offset.
SELECT state, attempts, crashes, generation, due_us, errors FROM open WHERE sub = ? AND tp = ? AND seq = ?;
-- name: open_below
-- The open offsets of a partition below one, with their events, newest first.
SELECT event.seq, event.tp, event.eid, event.depth, event.head, event.body FROM open
JOIN event ON event.seq = open.seq WHERE open.sub = ? AND open.tp = ? AND open.seq < ? ORDER BY open.seq DESC;
-- name: version_at
-- Which version an offset was, or is to be, finished by.
SELECT coalesce(
    (SELECT version FROM exception WHERE sub = ?1 AND tp = ?2 AND seq = ?3),
    (SELECT version FROM range WHERE sub = ?1 AND tp = ?2 AND after < ?3 ORDER BY after DESC LIMIT 1));
