package kubectl

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// mostMetrics is more than the size of an agent's metrics, in bytes.
const mostMetrics = 16 << 20

// poolFigures are what an agent's metrics say about its node.
type poolFigures struct {
	// Open says that the agent has reported every container whole, and that Redis hears from it.
	Open                bool    `json:"open"`
	LendableMilliCores  float64 `json:"lendableMilliCores"`
	LendableBytes       float64 `json:"lendableBytes"`
	AvailableMilliCores float64 `json:"availableMilliCores"`
	AvailableBytes      float64 `json:"availableBytes"`
	LentMilliCores      float64 `json:"lentMilliCores"`
	BorrowedMilliCores  float64 `json:"borrowedMilliCores"`
	BorrowedBytes       float64 `json:"borrowedBytes"`
	// InFlight is how many pods have a weight from the agent, and Owing how many
	// containers it has yet to restore.
	InFlight       float64 `json:"inFlight"`
	Containers     float64 `json:"containers"`
	Owing          float64 `json:"owing"`
	Safeguards     float64 `json:"safeguards"`
	ClampedSeconds float64 `json:"clampedSeconds"`
	ClampedNow     float64 `json:"clampedSecondsOfWindow"`
	Violations     float64 `json:"violations"`
}

type families map[string]*dto.MetricFamily

func scrape(ctx context.Context, base *url.URL) (families, error) {
	response, err := get(ctx, base.JoinPath("metrics"))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	found, err := parser.TextToMetricFamilies(io.LimitReader(response.Body, mostMetrics))
	if err != nil {
		return nil, fmt.Errorf("parsing the metrics: %w", err)
	}
	if _, ok := found["libra_agent_open"]; !ok {
		return nil, fmt.Errorf("there is no libra_agent_open among %d metrics: its version may differ from this plugin's", len(found))
	}
	return found, nil
}

// sum adds up all series of a counter or a gauge. A metric without series is 0: nothing was counted yet.
func (f families) sum(name string) (total float64) {
	family, ok := f[name]
	if !ok {
		return 0
	}
	for _, m := range family.Metric {
		total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	return total
}

// figuresOf takes current values and totals from the second scrape, and integrals over
// time as means between the two.
func figuresOf(first, second families, between time.Duration) poolFigures {
	// An agent that restarted between the two counts from zero.
	mean := func(name string) float64 { return max(0, second.sum(name)-first.sum(name)) / between.Seconds() }
	return poolFigures{
		Open:                second.sum("libra_agent_open") == 1,
		LendableMilliCores:  second.sum("libra_agent_lendable_cpu"),
		LendableBytes:       second.sum("libra_agent_lendable_memory_bytes"),
		AvailableMilliCores: 1000 * mean("libra_agent_available_cpu_total"),
		AvailableBytes:      mean("libra_agent_available_memory_total"),
		LentMilliCores:      1000 * mean("libra_agent_lent_cpu_total"),
		BorrowedMilliCores:  1000 * mean("libra_agent_borrowed_cpu_total"),
		BorrowedBytes:       mean("libra_agent_borrowed_memory_total"),
		InFlight:            second.sum("libra_agent_weights_pods"),
		Containers:          second.sum("libra_agent_containers"),
		Owing:               second.sum("libra_agent_owing"),
		Safeguards:          second.sum("libra_agent_safeguards_total"),
		ClampedSeconds:      second.sum("libra_agent_clamped_seconds_total"),
		ClampedNow:          max(0, second.sum("libra_agent_clamped_seconds_total")-first.sum("libra_agent_clamped_seconds_total")),
		Violations:          second.sum("libra_agent_invariant_violations_total"),
	}
}
