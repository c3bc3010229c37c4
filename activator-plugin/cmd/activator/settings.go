package main

import (
	"context"
	"sync"

	"go.uber.org/zap"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"knative.dev/pkg/injection/clients/dynamicclient"

	"libra.dev/libra/pkg/settings"
)

// followSettings follows the cluster's settings once they are run, and logs what they
// are, and what is wrong with them. Until they have been read, Libra observes.
func followSettings(ctx context.Context, kube kubernetes.Interface, logger *zap.SugaredLogger) (*settings.Live, error) {
	refused := &refusals{logger: logger}
	objects, _ := ctx.Value(dynamicclient.Key{}).(dynamic.Interface)
	live, err := settings.NewLive(kube, objects, refused.log)
	if err != nil {
		return nil, err
	}
	var last settings.Settings
	live.OnChange(func() {
		if s := live.Settings(); live.Synced() && s != last {
			last = s
			logger.Infow("Libra's settings", "mode", s.Mode, "maxMode", s.MaxMode, "source", s.Source, "minLoan", s.MinLoan, "safeguardPercent", s.SafeguardPercent, "domain", s.Domain, "placement", s.Placement)
		}
	})
	return live, nil
}

// maxRefusals bounds what refusals remember. Past it all is forgotten, and said once more.
const maxRefusals = 256

// refusals logs each text once: a watch that fails is tried again and again.
type refusals struct {
	logger *zap.SugaredLogger

	mu   sync.Mutex
	said map[string]struct{}
}

func (r *refusals) log(err error) {
	if r.first(err.Error()) {
		r.logger.Warnw("Refused a setting. This is logged once.", zap.Error(err))
	}
}

func (r *refusals) first(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.said[text]; ok {
		return false
	}
	if r.said == nil || len(r.said) >= maxRefusals {
		r.said = make(map[string]struct{})
	}
	r.said[text] = struct{}{}
	return true
}
