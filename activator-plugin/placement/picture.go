package placement

import (
	"context"

	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"
	"k8s.io/utils/clock"
)

// Profiles is where the picture comes from. A pool.Redis is one.
type Profiles interface{}

// PictureOptions are the collaborators of a Picture.
type PictureOptions struct {
	Profiles      Profiles
	Clock         clock.WithTicker
	Logger        *zap.SugaredLogger
	MeterProvider metric.MeterProvider
}

// Picture is what this activator knows of the pools of all nodes.
type Picture struct{}

// NewPicture makes a picture of which nothing is known before it runs.
func NewPicture(o PictureOptions) (*Picture, error) { return &Picture{}, nil }

// Run follows the pools until ctx is done.
func (p *Picture) Run(ctx context.Context) { <-ctx.Done() }

// View is what functions of a domain see of a node. It is to be asked for once and kept: it is the same
// for all who ask, and is forgotten when nobody has it any more.
func (p *Picture) View(node, domain string) *View { return &View{} }
