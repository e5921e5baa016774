package pace

import "time"

// Retries of a request without an answer begin after ShortPause, and are at most LongPause apart: soon enough
// for a connection that broke, and seldom enough for a service that is down. The factor does not change them.
const (
	ShortPause = 20 * time.Millisecond
	LongPause  = 500 * time.Millisecond
)

// Timeouts for the end of a client, a lease or a program. People wait for them, and a lock that is not released
// expires with its TTL.

// CloseTime returns how long Close waits for requests that are in progress.
func CloseTime() time.Duration { return Scale(2 * time.Second) }

// ReleaseTime bounds the wait for the answer to a release or a rollback.
func ReleaseTime() time.Duration { return Scale(2 * time.Second) }

// FinishTime bounds the time that a request continues after its caller has left, because cancelling it would
// cost its connection.
func FinishTime() time.Duration { return Scale(100 * time.Millisecond) }

// EventsTime returns how long Close waits for slow hooks.
func EventsTime() time.Duration { return Scale(time.Second) }

// Timeouts for the start of a client.

// OpenTime bounds the first check of a service. A service that is down does not keep a client from starting.
func OpenTime() time.Duration { return Scale(5 * time.Second) }

// ConnectTime bounds the connection to a database: name lookup, TCP, TLS and login.
func ConnectTime() time.Duration { return Scale(5 * time.Second) }

// DialTime bounds the connection to a Redis node, and each answer until it votes.
func DialTime() time.Duration { return Scale(time.Second) }

// LoginTime bounds a login to etcd. The servers make logins slow on purpose, and many clients may log in to a
// member that has just come back.
func LoginTime() time.Duration { return Scale(5 * time.Second) }

// MakeTablesTime bounds the creation of the tables of SQLite, by one of many programs that start at once.
func MakeTablesTime() time.Duration { return Scale(10 * time.Second) }

// Timeouts of requests that do not depend on a TTL.

// CallTime bounds the answer of one of several servers. After it the client asks the next server.
func CallTime() time.Duration { return Scale(2 * time.Second) }

// AskTime bounds a request to one Redis node on behalf of a person, such as Inspect.
func AskTime() time.Duration { return Scale(time.Second) }

// FindShardTime bounds the search for a release's shard after the release's deadline.
func FindShardTime() time.Duration { return Scale(time.Second) }

// AskHolderTime bounds the request for the name of a lock's holder. Without an answer the error has no name.
func AskHolderTime() time.Duration { return Scale(200 * time.Millisecond) }

// ScanTime bounds one step through the keys of a busy Redis.
func ScanTime() time.Duration { return Scale(5 * time.Second) }

// ConfirmTime bounds the wait for a replica to acknowledge the writes of its master.
func ConfirmTime() time.Duration { return Scale(time.Second) }

// LookTime bounds a request to ZooKeeper for which the caller sets no bound.
func LookTime() time.Duration { return Scale(10 * time.Second) }

// CheckTime bounds the request that verifies an alert about a lease.
func CheckTime() time.Duration { return Scale(time.Second) }

// NotifyTime bounds a notification of PostgreSQL to the client's own connection.
func NotifyTime() time.Duration { return Scale(2 * time.Second) }

// Times of silence after which a service or a process counts as stopped, not only as busy.

// OverdueTime is the time without an answer after which errors name a node, and requests that do not need the node
// stop waiting for it. It is long compared with any network path, and short compared with the time of a
// request.
func OverdueTime() time.Duration { return Scale(250 * time.Millisecond) }

// SilenceTime is the time without an answer to any request after which the connection to a node is closed.
func SilenceTime() time.Duration { return Scale(2 * time.Second) }

// TurnTime is the time without an answer to any other request after which a request that waits for its turn
// fails.
func TurnTime() time.Duration { return Scale(time.Second) }

// StandstillTime is the delay of the end of a wait from which on a process counts as stopped, and not only as
// busy.
func StandstillTime() time.Duration { return Scale(2 * time.Second) }

// Timeouts of a diagnosis.

// ExamTime bounds all checks of a database.
func ExamTime() time.Duration { return Scale(10 * time.Second) }

// ExamNodeTime bounds all checks of a Redis node.
func ExamNodeTime() time.Duration { return Scale(15 * time.Second) }

// ExamStepTime bounds one check of a Redis node.
func ExamStepTime() time.Duration { return Scale(3 * time.Second) }

// Timeouts of the command.

// HintTime bounds a request of the command that only improves a message.
func HintTime() time.Duration { return Scale(2 * time.Second) }

// DetailTime bounds the console's request for the details of one lock, for which a page waits.
func DetailTime() time.Duration { return Scale(time.Second) }

// DoctorTime bounds the time that the console waits for a diagnosis.
func DoctorTime() time.Duration { return Scale(30 * time.Second) }

// DemoTime bounds a demonstration, which takes five seconds on a quiet machine.
func DemoTime() time.Duration { return Scale(18 * time.Second) }

// BrowserTime bounds a browser's time to send a request, or to read a response.
func BrowserTime() time.Duration { return Scale(10 * time.Second) }

// LastPagesTime bounds the time that a console waits for responses in progress when it ends.
func LastPagesTime() time.Duration { return Scale(3 * time.Second) }

// ManagerTime bounds the service manager's time to receive a message.
func ManagerTime() time.Duration { return Scale(time.Second) }

// WriteTime bounds the time that the command waits for a reader of a FIFO.
func WriteTime() time.Duration { return Scale(2 * time.Second) }

// GuardTime bounds the start of a command's guard on a busy machine.
func GuardTime() time.Duration { return Scale(10 * time.Second) }

// GuardEndTime bounds the end of a guard.
func GuardEndTime() time.Duration { return Scale(time.Second) }

// KillTime bounds the end of a command's processes after KILL.
func KillTime() time.Duration { return Scale(5 * time.Second) }

// StrayTime bounds the search for processes that left the process group of an ended command.
func StrayTime() time.Duration { return Scale(2 * time.Second) }

// LingerTime bounds the end of the last process of the group after the end of the command.
func LingerTime() time.Duration { return Scale(100 * time.Millisecond) }

// StopTime bounds the time until a stop signal to our own process takes effect. It never does if no process could
// continue us.
func StopTime() time.Duration { return Scale(200 * time.Millisecond) }
