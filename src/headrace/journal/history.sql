-- Queries on which version has handled what, each with a name and a sentence on what it is for.

-- name: handlers
-- All handlers (or one) and their active versions.
SELECT name, active FROM handler WHERE ?1 IS NULL OR name = ?1 OR name GLOB '*.' || ?1 ORDER BY name;
-- name: versions
-- All versions of a handler, oldest first.
SELECT version.id, handler.name, version.declared, model.name, model.digest, model.epoch, model.declared
FROM version JOIN handler ON handler.id = version.handler LEFT JOIN model ON model.id = version.model
WHERE handler.name = ? ORDER BY version.id;
-- name: subscriptions
-- The subscriptions of a handler, their topics, and how many events they have taken; retired ones too.
SELECT subscription.id, subscription.topic, sum(taken) FROM subscription
JOIN handler ON handler.id = subscription.handler JOIN position ON position.sub = subscription.id
WHERE handler.name = ? AND kind IN ('live', 'retired') GROUP BY subscription.id;
-- name: replayed
-- What each version of a handler has finished in replays that share its ledger.
SELECT replay.version, sum(done) + sum(position.dead) FROM replay JOIN subscription ON subscription.id = replay.sub
JOIN handler ON handler.id = subscription.handler JOIN position ON position.sub = replay.sub
WHERE handler.name = ? AND replay.again IS NULL GROUP BY replay.version;
-- name: ranges
-- Version ranges of a subscription: what each begins after, what it ends with, its version, what is gone of it.
SELECT range.tp, range.after, coalesce(lead(range.after) OVER (
    PARTITION BY range.tp ORDER BY range.after), position.high), range.version, range.gone
FROM range JOIN position ON position.sub = range.sub AND position.tp = range.tp
WHERE range.sub = ? ORDER BY range.tp, range.after;
-- name: passed
-- Events that a subscription has taken, counted by the range they lie in; NULL = in none.
SELECT tp, after, count(*) FROM (
    SELECT event.tp AS tp, (SELECT max(after) FROM range WHERE range.sub = ?1 AND range.tp = event.tp
        AND after < event.seq) AS after
    FROM event CROSS JOIN position ON position.sub = ?1 AND position.tp = event.tp
    WHERE event.tp >> 10 = ?2 AND event.seq > position.start AND event.seq <= position.high)
GROUP BY tp, after;
-- name: unfinished
-- Offsets that were taken and are not finished: open, or in a claimed range.
SELECT tp, seq FROM open WHERE sub = ?1
UNION SELECT event.tp, event.seq FROM position CROSS JOIN event ON event.tp >> 10 = position.tp >> 10
AND event.tp = position.tp AND event.seq > claimed_after AND event.seq <= high
WHERE position.sub = ?1 AND claimed_after < high;
-- name: exceptions
-- Offsets that another version than their range's has finished; one that is open again (redriven) is not.
SELECT tp, seq, version FROM exception WHERE sub = ?1 AND NOT EXISTS (
    SELECT 1 FROM open WHERE open.sub = ?1 AND open.tp = exception.tp AND open.seq = exception.seq) ORDER BY seq;
