package main

import (
	"context"

	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"
	"knative.dev/pkg/injection/clients/dynamicclient"

	"libra.dev/libra/pkg/settings"
)

// followSettings returns settings that follow the cluster's once they are run. It logs
// what they are and what is wrong with them. Until they have been read, Libra observes.
func followSettings(ctx context.Context, kube kubernetes.Interface, logger *zap.SugaredLogger) (*settings.Live, error) {
	live, err := settings.NewLive(kube, dynamicclient.Get(ctx), func(err error) {
		logger.Warnw("Cannot read or apply some of Libra's settings. This is logged once.", zap.Error(err))
	})
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
