// Package driver is the contract between the holdfast client and the service that
// keeps the locks. It is for authors of drivers; programs that take locks use
// package holdfast. The interface may grow, so a driver lives in this
// repository or follows its releases. Package driver/template is a whole driver, as a
// model.
//
// The client decides when a lease is renewed, when it is lost and which caller is next
// inside the process. A driver decides only which process holds a key, and
// until when that answer can be trusted.
//
// # Rules
//
// Other packages refer to each rule by its name. The cases of package locktest in
// brackets check the rule on every driver.
//
// Waiting and cancelling:
//
//   - Wait. Acquire waits while another owner has the lock, and while the service does not
//     answer, also if it does not answer from the start. The wait ends with a grant, the end of
//     ctx, Close, or a rejection that time does not change, such as a wrong password.
//     (AcquireWaitsForRelease, WaitOutlivesDeadHolder, WaitSurvivesOutage,
//     WaitCanStartDuringOutage)
//   - NoWait. With Request.NoWait, Acquire makes one attempt. It may repeat that for a moment
//     while a free lock is kept for waiters, and no owner is known. It returns a *HeldError if the
//     service answered that another owner has the lock or comes first, and an
//     *UnavailableError if the service did not answer. It never confuses the two.
//     (TryNamesHolder, AtMostOneTryWins, LostMajorityNamesNodes)
//   - End. If ctx ends a wait, the error matches ctx.Err() and the last obstacle of the wait,
//     if that is known. If ctx has ended before, Acquire takes nothing.
//     (CancelledWaitNamesObstacle, EndedContextDoesNotAcquire, ObstacleChangeIsReported)
//   - Nothing stays. When Acquire returns an error, it leaves no lock and no place in a
//     queue: none at all if the service answers, and otherwise none that outlives
//     Request.TTL. It releases a lock that was granted at the last moment. As ctx may have ended,
//     the driver sends these requests with a context and a time limit of its own.
//     (CancelAtAnyPointFreesLock, LostRepliesFreeLock, LostTryRepliesFreeLock)
//   - Obstacle. Acquire calls Request.OnObstacle when its wait begins, and when the obstacle
//     changes its kind: a *HeldError or an *UnavailableError. The first call comes half a second
//     after the wait for a holder has begun, at the latest: it lets calls of the same process
//     that do not wait return. HeldError.Waiters does not count the caller.
//     (ObstacleChangeIsReported, WaitStartIsReported, MaxWaitersCountsOtherWaiters)
//   - Order. With Limits.Order, waiters get the lock in the order in which they came. A
//     waiter that leaves delays nobody. (WaitersAreServedInOrder,
//     CancelledWaiterIsSkipped)
//
// Grants:
//
//   - One holder. No two grants of a key are trusted at the same time.
//     (OneHolderAtATime, OneHolderUnderContention, KeysAreIndependent)
//   - Owner. Grant.Owner names one grant. No other grant of any process ever has the same owner.
//     (TokensRiseAcrossClients, ReleaseByOtherOwnerIsIgnored)
//   - Tokens. With Limits.Token, the token of a grant is above 0, and no less than Token +
//     Block of every earlier grant of the key, however that grant ended. Without, it is 0.
//     (TokensRiseAcrossClients, TokenBlocksDoNotOverlap, ForceReleaseEndsLease)
//   - TTL. The client asks for TTLs from Limits.MinTTL to Limits.MaxTTL. The driver rounds
//     them up to a multiple of Limits.Granularity, never down, and Grant.TTL has the result.
//     (LimitsAreRespected, TTLsAreRoundedUp)
//   - Trust. TrustedUntil counts from before the request was sent, never from its answer.
//     It ends before the service may give the lock to another owner, earlier by the drift
//     of the clocks of client and service. (TrustCountsFromBeforeRequest,
//     NoRenewEndsAfterTTL, DisconnectedLeaseEndsByDeadline)
//
// Keeping and losing:
//
//   - Renew. Renew returns one Renewal for each grant, in order. Grant.TTL is the TTL to
//     renew it for; the client changes it only with Limits.ChangeTTL. Renew never shortens
//     the trust of a grant: the service may execute a request late, after its sender has gone and
//     after a later request, and that must not end the trust.
//     (OneCallRenewsManyGrants, WatchdogKeepsLease, ExtendSetsLongerTTL, ExtendNeverShortens)
//   - Loss. ErrLost means that the service answered that the owner does not have the lock.
//     Every other error, such as a missing answer, leaves the old trust valid.
//     (UnansweredRenewalKeepsTrust, LostRenewalRepliesKeepLease,
//     LeaseSurvivesShortDisconnect)
//   - Release. The driver sends a release even if ctx has ended. A release may be
//     repeated, and never touches the lock of another owner. It may come while a renewal of
//     the grant is in progress, and that renewal then does not set the lock again.
//     (EndedContextStillReleases, ReleaseDuringRenewalFreesLock,
//     ReleaseIsIdempotent, ReleaseByOtherOwnerIsIgnored, DisconnectedReleaseIsUnconfirmed)
//   - Prompt. Release returns within about two seconds if the service does not answer, even if
//     ctx does not end. If ctx ends or has ended, Release waits for the answer for another tenth of a
//     second, and returns an error if there is none by then. The service may still execute
//     the requests that were sent. Behind many requests of its own client a release may wait longer,
//     while the service answers those.
//     (UnansweredReleaseReturns, EndedContextStillReleases)
//   - Keep. A release with keep above 0 leaves the lock in place for that time, rounded up
//     like a TTL, and then the lock expires. Meanwhile the lock has no owner: Status.Kept is set, it has
//     no token, and no renewal, adoption or Force of its last holder changes it; Force with token 0
//     ends it. The client asks for it only with Limits.MinHold, and sends nothing more for the
//     grant. (MinHoldOutlastsRelease, MinHoldClearsOwner)
//   - Close. Close ends every Acquire with ErrClosed. It returns when the requests of earlier
//     calls, such as a release, have been sent and no goroutine of the driver is left. It releases
//     no lock: the client does that first. A second Close returns nil.
//     (DriverCloseEndsWaits, ClosedDriverReturnsErrClosed, CloseUnderLoadReleasesLocks)
//
// Abilities:
//
//   - Declared. The client rejects with ErrUnsupported each ability that Limits does not declare
//     or the driver has no interface for, and does not ask the driver. (UndeclaredAbilityIsRejected)
//   - Look. Check, Inspect, Queue, List and Diagnose change nothing, on the service or in the
//     driver. (CheckAsksService, InspectShowsHolder, InspectShowsFreeKey,
//     ListShowsHeldLocks, QueueShowsWaitersInOrder)
//   - Force. Force takes the lock from the grant that the token belongs to, and from no
//     other. The first waiter gets it next, and the old holder cannot renew it.
//     (ForceReleaseComparesToken, ForceReleaseEndsLease,
//     ForceReleaseServesNextWaiter)
//   - Alert. A driver that receives a message about a Force notifies the client, with the reason
//     that was given to Force. An alert is a hint: the client calls Check, which decides. Without an
//     alert the client notices the loss at the next renewal. (ForcedHolderGetsReason)
//   - Adopt. At most one client adopts a grant. No client adopts a grant that has expired, was
//     released, or was replaced by another owner's, even while Keep leaves the lock in place. Only a
//     grant that was asked for with Request.Adoptable is adopted: it serves one holder, so that nobody
//     else in the process relies on it. (AdoptContinuesGrant,
//     GrantIsAdoptedOnce, OnlyAdoptableGrantIsAdopted,
//     AdoptableGrantServesOneHolder, PassedGrantIsNotAdopted, ReleasedGrantIsNotAdopted,
//     ExpiredDetachedGrantStaysLost, DetachedGrantIsRenewedAndReleased,
//     DetachLeavesLockUntilDeadline)
//   - Nodes. Nodes lists each node with its present state and its round-trip time.
//     (NodesReportState, NodesReportRoundTrip)
//
// # Optional interfaces
//
// A driver that combines other drivers may have an interface that some of them lack. Its methods then
// return ErrUnsupported for the locks of these drivers, as Acquire does with Request.Adoptable.
//
//	Checker    asks whether a grant is still valid    Lease.Check
//	Inspector  names the holder of a lock             Client.Inspect
//	Lister     lists locks                            Client.List
//	Queuer     lists the waiters for a lock           Client.Queue
//	Forcer     takes a lock away from its holder      Client.ForceRelease
//	Alerter    notifies that holder at once           the cause of Lease.Context
//	Adopter    continues a grant of another process   Client.Adopt, Lease.Detach
//	Notifier   reports the state of nodes             Client.Nodes, Hooks.Node
//	Doctor     finds faults for an operator to fix    Client.Diagnose
package driver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Driver acquires, renews and releases locks. All methods are safe for concurrent use. A driver returns plain
// errors: the client wraps them once.
type Driver interface {
	// Acquire acquires the lock on req.Key. It blocks until the lock is granted, the service rejects the
	// request for good, ctx ends, or Close (Wait); with req.NoWait it makes one attempt (NoWait). After an
	// error it leaves nothing on the service (Nothing stays).
	//
	// Errors: *HeldError, with NoWait only; *UnavailableError; ErrClosed; or ctx.Err(), together with the last
	// *HeldError or *UnavailableError of the wait, if there is one (End).
	Acquire(ctx context.Context, req Request) (Grant, error)

	// Renew extends all grants by their TTL in one call, so that the requests travel together. It blocks until
	// each has an outcome or ctx ends, and returns one Renewal for each grant, in order (Renew, Loss). The
	// client never renews a grant twice at the same time.
	Renew(ctx context.Context, grants []Grant) []Renewal

	// Release frees the lock for the next holder, or with keep above 0 leaves it in place for that time
	// (Release, Keep). It blocks until the service has answered, or has been silent for two seconds (Prompt).
	// The end of ctx shortens only that wait.
	//
	// Errors: nil if the lock was released or another owner has it; *UnavailableError or ctx.Err() if the
	// outcome is unknown. The lock then expires with its TTL.
	Release(ctx context.Context, grant Grant, keep time.Duration) error

	// Limits returns the abilities of the driver, which never change.
	Limits() Limits

	// Close ends all waits with ErrClosed and frees the driver's resources (Close).
	Close() error
}

// Inspector is a Driver that can name the holder of a lock.
type Inspector interface {
	// Inspect returns the service's view of key, without changing it. With
	// ErrUnavailable the Status has the views of the nodes that have answered.
	Inspect(ctx context.Context, key string) (Status, error)
}

// Lister is a Driver that can list locks.
type Lister interface {
	// List calls yield for each key that is held or waited for and begins with
	// prefix, in no order, until yield returns false. If too few nodes answer it
	// may yield the locks of the others, with Held false, and then returns ErrUnavailable.
	List(ctx context.Context, prefix string, yield func(Status) bool) error
}

// Queuer is a Driver that can list the waiters for a lock.
type Queuer interface {
	// Queue returns the first waiters of key, at most limit, in the order in which they will get the lock, as
	// far as it is known. It changes nothing. A dead waiter may be among them until its turn.
	Queue(ctx context.Context, key string, limit int) ([]Waiter, error)
}

// Waiter is a client that waits for a lock.
type Waiter struct {
	Owner  string
	Holder Holder    // the waiting process
	Since  time.Time // when it asked for the lock, by its own clock; zero if unknown
}

// Forcer is a Driver that can take a lock away from its holder.
type Forcer interface {
	// Force frees key if token belongs to its present holder, and reports whether it did. Token 0 stands for a
	// holder without a token, a user of another library. The holder receives reason, a line of text, if its
	// driver is an Alerter. With true and ErrUnconfirmed, Force has freed the key on a service that may forget
	// that.
	Force(ctx context.Context, key string, token int64, reason string) (bool, error)
}

// Alerter is a Driver that the service notifies at once when any client's Force takes a lock away from this
// client (Alert).
type Alerter interface {
	Checker
	// Alert sets the function that the driver calls then, from any goroutine, with the owner of the grant and
	// the reason that was given to Force. The reason comes from another process: do not trust it. The client
	// calls Alert before the first Acquire, and fn returns quickly.
	Alert(fn func(owner, reason string))
}

// Adopter is a Driver whose grants another process can continue if it knows their owner and token (Adopt).
//
// Renew and Release of an Adopter also accept a grant that another client has detached, by its Key, Owner and
// TTL. Renew must not take a free lock then, on any node: once the owner has lost the lock, the grant stays
// lost.
type Adopter interface {
	// Detach forgets grant without a release: the lock stays until its TTL ends, so that another client can
	// adopt it.
	Detach(grant Grant)
	// Adopt takes the lock over from grant, whose Key, Owner and TTL must be set, and returns a grant of its
	// own with a higher token. If several clients adopt the same grant, one succeeds. Adopt blocks until it
	// has the lock, until it knows that the lock is free or has another owner (ErrLost), or until ctx or TTL
	// ends (ErrUnavailable). In the last case it releases the lock on the nodes where it has taken it over; on
	// the others the lock stays until its TTL ends.
	Adopt(ctx context.Context, grant Grant) (Grant, error)
}

// Checker is a Driver that can ask the service whether a grant is still valid.
type Checker interface {
	// Check returns nil if the service has just confirmed that the grant's owner has
	// the lock, ErrLost if it has just denied that, and an *UnavailableError
	// if it does not know. Check changes nothing, on the service or in the driver.
	Check(ctx context.Context, grant Grant) error
}

// Notifier is a Driver that reports the state of its nodes.
type Notifier interface {
	// Nodes returns the present state of each node, in the order in which the driver was opened with them. It
	// sends no request.
	Nodes() []NodeEvent
	// Notify sets the function that the driver calls at each change, from any goroutine. The client calls
	// Notify before the first Acquire, and fn returns quickly.
	Notify(fn func(NodeEvent))
}

// Doctor is a Driver that finds faults for an operator to fix.
type Doctor interface {
	// Diagnose checks the service and each of its nodes over separate connections, in whatever state the
	// driver is. It returns the result of each check, node by node. ttl is the TTL of the leases; 0 means 10
	// s. Diagnose changes nothing on the service, and blocks for some seconds at most, or until ctx ends: a
	// check without an answer by then is a fault of its node.
	Diagnose(ctx context.Context, ttl time.Duration) []Finding
}

// Finding is the result of one check of a Doctor.
type Finding struct {
	Node    string  `json:"node,omitempty"` // empty: the service as a whole
	Check   string  `json:"check"`          // name of the check: one word that never changes
	Verdict Verdict `json:"verdict"`
	Text    string  `json:"text"`          // the result and its meaning
	Fix     string  `json:"fix,omitempty"` // the fix
}

// Bad reports whether an operator should do something.
func (f Finding) Bad() bool { return f.Verdict == VerdictWarning || f.Verdict == VerdictFault }

// Verdict grades a Finding.
type Verdict string

// The verdicts of a check.
const (
	VerdictOK      Verdict = "ok"
	VerdictSkipped Verdict = "skipped" // not checked: a permission is missing that locks do not need
	VerdictWarning Verdict = "warning" // locks work now
	VerdictFault   Verdict = "fault"   // locks do not work, or two clients can get the same lock
)

// Request asks for a lock.
type Request struct {
	Key    string
	TTL    time.Duration
	NoWait bool
	// WillRenew reports that the client will renew the grant, and soon if it is trusted for less than half of
	// TTL. The driver may then return a grant with less trust, such as one that the last holder has handed
	// over and the service has not confirmed yet.
	WillRenew bool
	// Adoptable asks for a grant that another process may adopt. Its owner id, and the owner id of the grant
	// that Adopter.Adopt returns, are made by MarkAdoptable. The client sets it only for an Adopter.
	Adoptable bool
	Holder    Holder
	// OnObstacle, if set, receives the obstacles of a wait (Obstacle). Calls come one after the other. A call
	// may come a little after the change, and the last one after Acquire has returned. The driver holds no
	// mutex during the call. The function returns quickly.
	OnObstacle func(error)
}

// Holder describes the holder of a lock, or a waiter, for people.
type Holder struct {
	Host    string `json:"host,omitempty"`    // name of the machine
	PID     int    `json:"pid,omitempty"`     // process id on that machine
	Program string `json:"program,omitempty"` // name of the program
	// Note describes the purpose of this lease.
	Note string `json:"note,omitempty"`
}

// String returns the holder in the form of messages: `web-3 pid 4121 (billing)`, or
// `web-3 pid 4121 (billing), "nightly import"` with a note.
func (h Holder) String() string {
	var b strings.Builder
	switch {
	case h.Host != "":
		b.WriteString(quoteUnprintable(h.Host))
	case h.PID == 0 && h.Program != "":
		b.WriteString(quoteUnprintable(h.Program))
	default:
		b.WriteString("unknown host")
	}
	if h.PID != 0 {
		fmt.Fprintf(&b, " pid %d", h.PID)
	}
	if program := quoteUnprintable(h.Program); program != "" && b.String() != program {
		fmt.Fprintf(&b, " (%s)", program)
	}
	if h.Note != "" {
		fmt.Fprintf(&b, ", %q", h.Note)
	}
	return b.String()
}

// quoteUnprintable returns text unchanged if all its runes are printable, and quoted otherwise. Another client
// may have chosen the text, and errors that name a holder are printed and logged.
func quoteUnprintable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}

// Grant is a lock that the service has granted.
type Grant struct {
	Key   string
	Owner string // names this grant on the service; no other grant ever has it
	Token int64  // fencing token; 0 if Limits.Token is false
	// Block is the number of holders that the grant may serve in turn: with more than one, the client may pass
	// it on inside the process without asking the service. The i-th holder, from 0, has the token Token+i, or
	// 0 if Limits.Token is false. 0 counts as 1.
	Block int
	// TTL is the granted TTL. It may be longer than the requested one, by less than
	// Limits.Granularity.
	TTL time.Duration
	// TrustedUntil is the time at which the client has to consider the grant lost, unless it was renewed. It
	// counts from before the request was sent. It has both clock readings, so that the client can compare
	// monotonic and wall time.
	TrustedUntil time.Time
}

// Renewal is the outcome of renewing one grant.
type Renewal struct {
	// TrustedUntil is the new end of trust. With an error, zero means that the old end still holds.
	TrustedUntil time.Time
	Waiters      int // the known number of other waiters
	// AtRisk reports that the last round left a bare quorum: losing one more node ends the
	// lease. It is always false for a lease that can never spare a node.
	AtRisk bool
	// Err is nil if the grant was renewed, ErrLost if the service answered that the owner no longer has the
	// lock, and any other error if the outcome is unknown.
	Err error
}

// Limits declares the abilities of a driver. The client uses no others (Declared).
type Limits struct {
	MinTTL time.Duration // the smallest TTL it can honour; above 0
	MaxTTL time.Duration // the largest; 0 means no bound
	// MaxTTLHint is the end of an error for a TTL above MaxTTL: how to raise MaxTTL, and the price. Empty: it
	// cannot be raised.
	MaxTTLHint string
	// Granularity is the unit to which TTLs are rounded up. 0: they are not rounded.
	Granularity time.Duration
	Token       bool // grants carry a fencing token
	Order       bool // waiters are served in the order of arrival
	MinHold     bool // Release can keep the lock for a time
	ChangeTTL   bool // Renew can set another TTL
	// Nodes is the number of voters, a majority of which has to have a lock; 0: the service answers as one.
	// Above 2 the first renewal follows soon after the grant, because it can put the lock on nodes that have
	// not granted it.
	Nodes int
	// NoRWLock is the reason, as part of an error, why the driver has no read and write locks: another library
	// uses their keys. Empty: it has them.
	NoRWLock string
}

// Status describes one lock as the service knows it.
type Status struct {
	Key       string
	Held      bool // the service, or a quorum of its nodes, names one holder
	Kept      bool // the holder has released the lock, which MinHold keeps until Remaining ends
	Owner     string
	Holder    Holder
	Since     time.Time     // when the holder asked for it, by its own clock; zero if unknown
	Token     int64         // the first token of the holder's grant; 0 if Limits.Token is false
	Remaining time.Duration // time until the lock expires unless it is renewed; negative: it never does
	Waiters   int
	Nodes     []NodeView // one for each node, in the order of opening; empty for a service without nodes
}

// NodeView is one node's view of one lock.
type NodeView struct {
	Node      string
	Owner     string
	Token     int64
	Remaining time.Duration
	Waiters   int
	Err       error
}

// NodeEvent reports a change of one node's state.
type NodeEvent struct {
	Node  string
	State NodeState
	Err   error // the reason, unless the node is up
	// RoundTrip is the smoothed response time of the node, over the last few samples of its connection. The
	// driver takes a sample every few seconds, with requests of its own. 0: the node is down or has no sample
	// yet.
	RoundTrip time.Duration
}

// NodeState reports whether a node votes, and if not, why.
type NodeState string

// The states of a node.
const (
	NodeUp       NodeState = "up"       // votes
	NodeDown     NodeState = "down"     // cannot be reached or rejects the connection
	NodeStalled  NodeState = "stalled"  // connected, but does not answer in time
	NodePolling  NodeState = "polling"  // votes, but cannot wake waiters: they poll
	NodeDegraded NodeState = "degraded" // votes, but needs an operator
)

// Errors that a driver returns, possibly wrapped. Package holdfast exports them under the same names.
var (
	ErrHeld        = errors.New("lock is held")
	ErrUnavailable = errors.New("lock service is unavailable")
	ErrAuth        = errors.New("access denied")             // wrong credentials, or a permission is missing; may be wrapped in an UnavailableError
	ErrConfig      = errors.New("node is not fit for locks") // somebody has to change the service, or its address; may be wrapped in an UnavailableError
	ErrLost        = errors.New("lease is lost")
	ErrClosed      = errors.New("client is closed")
	ErrInvalid     = errors.New("invalid argument")
	ErrUnsupported = errors.New("not supported by this driver")
	ErrUnconfirmed = errors.New("the lock was taken away, but no replica has confirmed it: a failover now may bring the old holder back")
)

// LostError is ErrLost with a reason that the service knows, other than a force-release. It matches ErrLost.
type LostError struct{ Reason string }

// Error returns the text of ErrLost and the reason.
func (e *LostError) Error() string { return ErrLost.Error() + ": " + e.Reason }

// Is matches ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// HeldError names another holder of the lock. It matches ErrHeld.
type HeldError struct {
	Owner      string
	Holder     Holder
	Since      time.Time     // when the holder asked for the lock, by its own clock; zero if unknown
	Remaining  time.Duration // time until the lock expires unless it is renewed; negative: it never does
	Kept       bool          // the holder has released the lock, which MinHold keeps
	Waiters    int           // known number of waiters, without the caller that gets the error
	SameClient bool          // the holder is a caller of the same client; only the client sets it
}

// Error returns a text that names the holder.
func (e *HeldError) Error() string {
	who := quoteOwner(e.Owner)
	if e.Holder != (Holder{}) {
		who = e.Holder.String()
	}
	switch {
	case e.Kept:
		return fmt.Sprintf("released by %s, and kept for another %v as it asked", who, e.Remaining.Round(time.Millisecond))
	case e.SameClient:
		return "held by this process, " + who
	}
	return "held by " + who
}

// Is matches ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

func quoteOwner(owner string) string {
	if owner == "" {
		return "another client"
	}
	return fmt.Sprintf("%q", owner)
}

// UnavailableError names the nodes of the service that did not answer, and their errors. It matches
// ErrUnavailable.
type UnavailableError struct {
	Need  int         // number of nodes that must answer; 0 if the service has no nodes, or any number is enough
	Nodes []NodeError // the nodes that failed; empty if no node is to blame
	Err   error       // the cause if Nodes is empty
}

// NodeError is the failure of one node.
type NodeError struct {
	Node string
	Err  error
}

// Error returns a text with each node that failed and its cause. Nodes with the same cause are named together.
// So are nodes in quarantine, with the longest remaining time of them.
func (e *UnavailableError) Error() string {
	switch {
	case len(e.Nodes) == 0 && e.Err != nil:
		return e.Err.Error()
	case len(e.Nodes) == 0 && e.Need == 0:
		return ErrUnavailable.Error()
	}
	var texts []string
	nodes := make(map[string][]string) // by text
	for _, n := range e.Nodes {
		text := fmt.Sprint(n.Err)
		if quarantineLeft(n.Err) > 0 {
			text = e.longestQuarantine()
		}
		if nodes[text] == nil {
			texts = append(texts, text)
		}
		nodes[text] = append(nodes[text], n.Node)
	}
	for i, text := range texts {
		word := "node "
		if len(nodes[text]) > 1 {
			word = "nodes "
		}
		texts[i] = word + strings.Join(nodes[text], ", ") + ": " + text
	}
	text := strings.Join(texts, "; ")
	switch {
	case e.Need == 0 || e.Need == 1 && len(e.Nodes) == 1:
		return text
	case e.Need == 1:
		return strings.TrimSuffix("need 1 node: "+text, ": ")
	}
	return strings.TrimSuffix(fmt.Sprintf("need %d nodes: %s", e.Need, text), ": ")
}

// quarantineLeft returns the remaining quarantine of a node that failed with err; 0 if err has another cause.
func quarantineLeft(err error) time.Duration {
	if q, ok := errors.AsType[interface {
		error
		Quarantine() time.Duration
	}](err); ok {
		return q.Quarantine()
	}
	return 0
}

// longestQuarantine returns the text of the node with the longest remaining quarantine.
func (e *UnavailableError) longestQuarantine() (text string) {
	var left time.Duration
	for _, n := range e.Nodes {
		if q := quarantineLeft(n.Err); q > left {
			left, text = q, n.Err.Error()
		}
	}
	return text
}

// Is matches ErrUnavailable.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

// Unwrap returns the causes.
func (e *UnavailableError) Unwrap() []error {
	errs := make([]error, len(e.Nodes), len(e.Nodes)+1)
	for i, n := range e.Nodes {
		errs[i] = n.Err
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}
