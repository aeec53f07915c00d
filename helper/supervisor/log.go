package supervisor

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/sirupsen/logrus"
)

// maxLine is how many bytes of a line of a helper's output are kept.
const maxLine = 64 << 10

// logLine logs a line of a helper's output: one that hclog wrote as JSON with
// its level and fields, any other as it is, at level info. It returns the text
// if that may explain an end: anything but hclog's levels up to info.
func logLine(log *logrus.Entry, line string, cut bool) (lastWords string) {
	if cut {
		log.Warnf("%s (cut: the line is longer than %d bytes)", line, maxLine)
		return line
	}

	var entry map[string]any
	err := json.Unmarshal([]byte(line), &entry)
	msg, ok := entry["@message"].(string)
	if err != nil || !ok {
		log.Info(line)
		return line
	}

	name, _ := entry["@level"].(string)
	level := levelOf(hclog.LevelFromString(name))
	if log.Logger.IsLevelEnabled(level) {
		// The host's own fields say whose line this is; a helper cannot replace them.
		fields := logrus.Fields{}
		for k, v := range entry {
			if _, taken := log.Data[k]; !taken && !strings.HasPrefix(k, "@") {
				fields[k] = v
			}
		}
		log.WithFields(fields).Log(level, msg)
	}
	if level <= logrus.WarnLevel {
		return msg
	}

	return ""
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
