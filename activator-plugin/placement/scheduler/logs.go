package scheduler

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"libra.dev/libra/pkg/settings"
)

// sugared returns a logger that sends what the activator's packages log to the scheduler's log.
func sugared(logger klog.Logger) *zap.SugaredLogger { return zap.New(&core{logger: logger}).Sugar() }

// errorKey is the key that zap.Error gives an error.
const errorKey = "error"

// core writes to a klog.Logger.
type core struct {
	logger klog.Logger
	fields []zapcore.Field
}

func (c *core) Enabled(level zapcore.Level) bool { return level >= zapcore.InfoLevel }

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{logger: c.logger, fields: append(c.fields[:len(c.fields):len(c.fields)], fields...)}
}

func (c *core) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	values := zapcore.NewMapObjectEncoder()
	var cause error
	for _, of := range [...][]zapcore.Field{c.fields, fields} {
		for _, f := range of {
			if err, ok := f.Interface.(error); ok && f.Key == errorKey {
				cause = err
			} else {
				f.AddTo(values)
			}
		}
	}
	pairs := make([]any, 0, 2*len(values.Fields))
	for key, value := range values.Fields {
		pairs = append(pairs, key, value)
	}
	if e.Level >= zapcore.WarnLevel {
		c.logger.Error(cause, e.Message, pairs...)
		return nil
	}
	if cause != nil {
		pairs = append(pairs, "err", cause)
	}
	c.logger.Info(e.Message, pairs...)
	return nil
}

func (c *core) Sync() error { return nil }

// followSettings returns the cluster's settings, which are followed once they are run. It logs each
// refused setting once.
func followSettings(kube kubernetes.Interface, objects dynamic.Interface, logger klog.Logger) (*settings.Live, error) {
	return settings.NewLive(kube, objects, func(err error) {
		logger.Error(err, "Cannot read or apply some of Libra's settings. This is logged once.")
	})
}
