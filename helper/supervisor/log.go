package supervisor

import (
	"encoding/json"
	"io"

	"github.com/hashicorp/go-hclog"
	"github.com/sirupsen/logrus"
)

// maxLine is how many bytes of a line of a helper's output are kept.
const maxLine = 64 << 10

// logLine logs a line of a helper's standard error: one that hclog wrote as
// JSON with its level and fields, any other as it is, at level info.
func logLine(log *logrus.Entry, line string, cut bool) {
	if cut {
		log.Warnf("%s (cut: the line is longer than %d bytes)", line, maxLine)
		return
	}

	var entry map[string]any
	if json.Unmarshal([]byte(line), &entry) != nil {
		log.Info(line)
		return
	}
	msg, ok := entry["@message"].(string)
	if !ok {
		log.Info(line)
		return
	}

	name, _ := entry["@level"].(string)
	level := levelOf(hclog.LevelFromString(name))
	if !log.Logger.IsLevelEnabled(level) {
		return
	}

	// The host's own fields say whose line this is; a helper cannot replace them.
	fields := logrus.Fields{}
	for k, v := range entry {
		if _, taken := log.Data[k]; !taken && k[:min(1, len(k))] != "@" {
			fields[k] = v
		}
	}
	log.WithFields(fields).Log(level, msg)
}

func levelOf(l hclog.Level) logrus.Level {
	switch l {
	case hclog.Trace:
		return logrus.TraceLevel
	case hclog.Debug:
		return logrus.DebugLevel
	case hclog.Warn:
		return logrus.WarnLevel
	case hclog.Error:
		return logrus.ErrorLevel
	}

	return logrus.InfoLevel
}

// debugSink takes go-plugin's own log. It is for debugging alone: what matters
// of it the supervisor says in its own words.
type debugSink struct{ log *logrus.Entry }

func (s debugSink) Accept(_ string, _ hclog.Level, msg string, args ...any) {
	if !s.log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		return
	}
	fields := logrus.Fields{}
	for i := 0; i+1 < len(args); i += 2 {
		if k, ok := args[i].(string); ok {
			fields[k] = args[i+1]
		}
	}
	s.log.WithFields(fields).Debug(msg)
}

// newGoPluginLogger returns the logger that go-plugin wants.
func newGoPluginLogger(log *logrus.Entry) hclog.Logger {
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Debug, Output: io.Discard})
	l.RegisterSink(debugSink{log})

	return l
}
