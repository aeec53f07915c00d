package supervisor

// State is what a supervisor is doing.
type State int

// The states. CrashLoop is Restarting after too many failures in a short time:
// the supervisor then waits longer between attempts.
const (
	Stopped State = iota
	Starting
	Running
	Restarting
	CrashLoop
	Closed
)

// States are all states, for a metric with one series each.
func States() []State {
	return []State{Stopped, Starting, Running, Restarting, CrashLoop, Closed}
}

func (s State) String() string {
	switch s {
	case Stopped:
		return "stopped"
	case Starting:
		return "starting"
	case Running:
		return "running"
	case Restarting:
		return "restarting"
	case CrashLoop:
		return "crash-loop"
	case Closed:
		return "closed"
	}

	return "unknown"
}
