package pace

import "time"

// Retries of a request that the service has not answered begin after ShortPause, and are at most LongPause apart: soon
// enough for a connection that broke, and seldom enough for a service that is down. No factor lengthens them.
const (
	ShortPause = 20 * time.Millisecond
	LongPause  = 500 * time.Millisecond
)

// Times for the end of a client, a lease or a program. People wait for it, and a lock that is not released lapses by itself.

// CloseTime returns how long Close waits for requests that are under way.
func CloseTime() time.Duration { return Scale(2 * time.Second) }

// ReleaseTime returns how long a release, or a rollback, waits for its answer.
func ReleaseTime() time.Duration { return Scale(2 * time.Second) }

// LastWords returns how long a request goes on after its caller has left, because ending it would cost its connection.
func LastWords() time.Duration { return Scale(100 * time.Millisecond) }

// EventsTime returns how long Close waits for slow hooks.
func EventsTime() time.Duration { return Scale(time.Second) }

// Times for the beginning of a client.

// OpenTime returns how long the first look at a service may take. A service that is down does not keep a client from starting.
func OpenTime() time.Duration { return Scale(5 * time.Second) }

// ConnectTime returns how long a connection to a database may take: a name to resolve, TCP, TLS and a login.
func ConnectTime() time.Duration { return Scale(5 * time.Second) }

// DialTime returns how long a connection to a Redis node may take, and each answer until it votes.
func DialTime() time.Duration { return Scale(time.Second) }

// LoginTime returns how long a login to etcd may take. The servers make it slow on purpose, and many clients may log in to a
// member that has just come back.
func LoginTime() time.Duration { return Scale(5 * time.Second) }

// MakeTablesTime returns how long making the tables of SQLite may take, which one of many programs that start at once does.
func MakeTablesTime() time.Duration { return Scale(10 * time.Second) }

// Times for requests that are about no TTL.

// CallTime returns how long one of several servers may take to answer. The others have their turn after it.
func CallTime() time.Duration { return Scale(2 * time.Second) }

// AskTime returns how long a Redis node may take for one request that people wait for.
func AskTime() time.Duration { return Scale(time.Second) }

// FindShardTime returns how long after its deadline a release goes on looking for its shard.
func FindShardTime() time.Duration { return Scale(time.Second) }

// AskHolderTime returns how long a node may take to name the holder of a lock. Without an answer the error has no name.
func AskHolderTime() time.Duration { return Scale(200 * time.Millisecond) }

// ScanTime returns how long a busy Redis may take for one step through its keys.
func ScanTime() time.Duration { return Scale(5 * time.Second) }

// ConfirmTime bounds the wait for a replica to acknowledge the writes of its master.
func ConfirmTime() time.Duration { return Scale(time.Second) }

// LookTime returns how long a look at ZooKeeper may take where the caller sets no bound.
func LookTime() time.Duration { return Scale(10 * time.Second) }

// CheckTime returns how long a client asks whether an alert about its lease is true.
func CheckTime() time.Duration { return Scale(time.Second) }

// NotifyTime returns how long a notification of PostgreSQL to oneself may take.
func NotifyTime() time.Duration { return Scale(2 * time.Second) }

// Times after which a service or a process counts as silent, and not as slow.

// Overdue returns for how long a node may answer nothing before errors name it, and before requests that can do without it
// no longer wait for it. It is long beside any way through a network, and short beside the time of a request.
func Overdue() time.Duration { return Scale(250 * time.Millisecond) }

// Silence returns for how long a node may answer nothing, though it was asked, before its connection is closed.
func Silence() time.Duration { return Scale(2 * time.Second) }

// TurnTime returns for how long nothing may be answered to others before a request that waits for its turn fails.
func TurnTime() time.Duration { return Scale(time.Second) }

// Standstill returns how late a process may notice the end of a wait before it was not only busy, but stopped.
func Standstill() time.Duration { return Scale(2 * time.Second) }

// Times for a diagnosis.

// ExamTime returns how long all checks of a database may take.
func ExamTime() time.Duration { return Scale(10 * time.Second) }

// ExamNodeTime returns how long all checks of a Redis node may take.
func ExamNodeTime() time.Duration { return Scale(15 * time.Second) }

// ExamStepTime returns how long one check of a Redis node may take.
func ExamStepTime() time.Duration { return Scale(3 * time.Second) }

// Times of the command.

// HintTime returns how long the command asks a backend for something that only improves a message.
func HintTime() time.Duration { return Scale(2 * time.Second) }

// DetailTime returns how long the console asks for the details of one lock, of which a page waits for the next picture.
func DetailTime() time.Duration { return Scale(time.Second) }

// DoctorTime returns how long the console waits for a diagnosis.
func DoctorTime() time.Duration { return Scale(30 * time.Second) }

// BrowserTime returns how long a browser may take to send a request, or to take an answer.
func BrowserTime() time.Duration { return Scale(10 * time.Second) }

// LastPagesTime returns how long a console that ends waits for answers under way.
func LastPagesTime() time.Duration { return Scale(3 * time.Second) }

// ManagerTime returns how long the service manager may take to receive a message.
func ManagerTime() time.Duration { return Scale(time.Second) }

// WriteTime returns how long the command waits for a reader of a FIFO.
func WriteTime() time.Duration { return Scale(2 * time.Second) }

// GuardTime returns how long the guard of a command may take to start on a busy machine.
func GuardTime() time.Duration { return Scale(10 * time.Second) }

// GuardEndTime returns how long a guard may take to end.
func GuardEndTime() time.Duration { return Scale(time.Second) }

// KillTime returns how long the processes of a command may take to die of KILL.
func KillTime() time.Duration { return Scale(5 * time.Second) }

// StrayTime returns how long to look for processes that left the group of a command that ended.
func StrayTime() time.Duration { return Scale(2 * time.Second) }

// LingerTime returns how long the last of the group may take to end with the command.
func LingerTime() time.Duration { return Scale(100 * time.Millisecond) }

// StopTime returns how long a stop of our own may take to take hold. It does not where no process could continue us.
func StopTime() time.Duration { return Scale(200 * time.Millisecond) }
