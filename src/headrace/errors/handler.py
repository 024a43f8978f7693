"""Errors 4xx: handlers."""

from __future__ import annotations

from headrace.errors.tree import Fault, HeadraceError


class HandlerError(HeadraceError):
    """A handler is declared wrongly or has failed."""


class SignatureInvalid(HandlerError):
    """Handler {handler} has a signature that Headrace cannot wire: {problem}.

    The app does not start.

    Hint: first parameter = the event consumed (annotated), return annotation = what may be emitted.
    """

    code = "HR-E401"
    fault = Fault.YOURS


class HandlerTwice(HandlerError):
    """Two handlers are both named {handler}: {first} and {second}.

    The name is the identity of the progress in the journal. The second was refused.

    Hint: rename one function, or give it ``name="..."``.
    """

    code = "HR-E402"
    fault = Fault.YOURS


class EmitRefused(HandlerError):
    """Handler {handler} emitted {emitted}, but may emit {allowed}.

    The attempt fails and is not repeated: the event goes to the dead letters, nothing was emitted.

    Hint: add the type to the return annotation, or mend the handler.
    """

    code = "HR-E403"
    fault = Fault.YOURS


class EmitUnnamed(HandlerError):
    """Handler {handler} calls ``ctx.emit`` from a task of its own without a name.

    The id of an emitted event is derived from the order of the calls, and that of concurrent tasks may
    differ in a second attempt.

    Hint: ``ctx.emit(event, name="...")``, with a name that is stable.
    """

    code = "HR-E404"
    fault = Fault.YOURS


class DeadlineExceeded(HandlerError):
    """Handler {handler} did not finish within {deadline_ms} ms.

    It was cancelled; the attempt counts and is retried by the policy of the handler.

    Hint: raise ``deadline_ms``, or look at the stack in the dead letter for what it waits for.
    """

    code = "HR-E405"
    fault = Fault.YOURS
    retryable = True


class HandlerCrashed(HandlerError):
    """The process died {crashes} times while handler {handler} had this event in hand.

    After the first time the events of the batch were run one by one, so this event is to blame (or
    somebody stopped the process each time).

    Hint: look for OOM kills and segmentation faults in the system log, then redrive.
    """

    code = "HR-E406"
    fault = Fault.YOURS


class HandlerFailed(HandlerError):
    """Handler {handler} raised {error}.

    After the attempts of its policy the event goes to the dead letters with the traceback.

    Hint: mend the handler and redrive with ``headrace dlq redrive``.
    """

    code = "HR-E407"
    fault = Fault.YOURS
    retryable = True


class DepthExceeded(HandlerError):
    """Event {event_id} would be number {depth} of its chain, the limit is {limit}.

    The event that would have caused it went to the dead letters.

    Hint: look for a cycle with ``headrace check``, or raise ``depth_max``.
    """

    code = "HR-E408"
    fault = Fault.YOURS


class DerivedConflict(HandlerError):
    """Handler {handler} would emit {event_id}, which another publisher has written with other content.

    The event goes to the dead letters; nothing was emitted.

    Hint: find who publishes ids of version 8 into this topic.
    """

    code = "HR-E409"
    fault = Fault.THEIRS


class EmitsTooMany(HandlerError):
    """Handler {handler} emitted more than {limit} events for one.

    The attempt fails and is not repeated; nothing was emitted.

    Hint: emit in a second step, from an event that carries the list.
    """

    code = "HR-E410"
    fault = Fault.YOURS


class PoolCrashed(HandlerError):
    """A process of handler {handler} died while it had this event, or others, in hand.

    All events that were in its processes are tried again, one by one, so that the one to blame is found.

    Hint: look for OOM kills and segmentation faults in the system log.
    """

    code = "HR-E411"
    fault = Fault.YOURS
    retryable = True


class EmitLate(HandlerError):
    """Handler {handler} calls ``ctx.emit`` after it has returned.

    The outcome of the event is settled by then; the late event was refused.

    Hint: await the tasks that a handler starts before it returns.
    """

    code = "HR-E412"
    fault = Fault.YOURS


class ProviderInvalid(HandlerError):
    """Provider {name} cannot be used: {problem}.

    The app does not start.

    Hint: the return annotation is the type that handlers ask for; parameters are types provided above it.
    """

    code = "HR-E413"
    fault = Fault.YOURS


class ProviderFailed(HandlerError):
    """{name} could not be made for the handlers of this process: {error}.

    The worker has taken nothing, and ends; what was opened before was closed again.

    Hint: the traceback above shows where; a service that is down is waited for in the provider itself.
    """

    code = "HR-E414"
    fault = Fault.YOURS
    retryable = True
