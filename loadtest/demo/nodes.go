package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"libra.dev/libra/loadtest/demo/evaluation"
	"libra.dev/libra/pkg/api"
)

const (
	// leastWorkers is how many nodes it takes to have a choice.
	leastWorkers = 2

	nodesTime      = 119 * time.Minute
	quickNodesTime = 15 * time.Minute
	// placementSetUp is how long it takes to install the functions of a phase and to teach them to Libra.
	// placementGap is by how much a block takes longer than in other evaluations: the counters of several
	// agents and of the activator are read, and the placement is verified to be in force.
	placementSetUp = 95 * time.Second
	placementGap   = 3 * time.Second
	// fullDraws is how often hash draws nodes for the functions: one draw may leave few functions on a node,
	// which then gain.
	fullDraws, quickDraws = 4, 1
)

var (
	// Each block has as much rest as burst.
	nodesFull  = lengths{block: 6 * burstPhase, blocks: 4}
	nodesQuick = lengths{block: 2 * burstPhase, blocks: 2}
)

// The least rank is left out last: the turns that the goal is about, those that they are compared with, the
// noise, and the others. All turns of the source node are left out before the first of owners.
const (
	rankGoal = iota + 1
	rankPolicies
	rankNoise
	rankOthers
	ranksOfSource
)

// nodesOptions are the flags of the evaluation on several nodes beyond the demo's.
type nodesOptions struct {
	quick, again        bool
	limit               time.Duration
	loads, pods         []int
	placements, sources []string
	blocks, draws       int
}

// chosen is the part of the whole that is to be measured.
type chosen struct {
	loads, pods []int
	draws       int
	sources     []api.Source
	placements  []api.Placement
}

func newEvaluateNodes() *cobra.Command {
	var o options
	var n nodesOptions
	cmd := &cobra.Command{
		Use:   "evaluate-nodes",
		Short: "Compare Libra's policies for which pod, on which node, gets a request",
		Long: `evaluate-nodes sends the same requests to the same ten functions, which have several pods
each on the workers of a box of several nodes, under one placement policy and then another,
block after block, and writes a report. All figures are relative to hash. It leaves out what
it has no time for, and names it. It leaves the box with the stock activator, without the
functions, and with all settings as they were.

Run it from the root of the repository. You can run it again at any time.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return startNodes(cmd.Context(), o, n, cmd.OutOrStdout())
		},
	}
	o.flags(cmd)
	var defaults []string
	for _, p := range placementsInOrder {
		if p != api.PlacementRandom && p != api.PlacementLeastPressure {
			defaults = append(defaults, string(p))
		}
	}
	f := cmd.Flags()
	f.StringVar(&o.outDir, "out", "out/evaluate-nodes", "folder for the results")
	f.BoolVar(&n.quick, "quick", false, fmt.Sprintf("a quick look within %s: fewer and shorter blocks, fewer inputs, and what matters most", minutes(quickNodesTime)))
	f.DurationVar(&n.limit, "limit", 0, fmt.Sprintf("time limit for the evaluation (default: %s; quick %s)", minutes(nodesTime), minutes(quickNodesTime)))
	f.IntSliceVar(&n.loads, "loads", []int{loadMiddle, loadHigh}, fmt.Sprintf("loads, in percent of the workers' CPU that the platform leaves; any of %v", evaluationLoads))
	f.IntSliceVar(&n.pods, "pods", []int{2, 4}, "pods per function: 2, 4 or both")
	f.StringSliceVar(&n.placements, "placements", defaults, fmt.Sprintf("placement policies to compare with %s; any of %s", api.PlacementHash, names(placementsInOrder)))
	f.StringSliceVar(&n.sources, "sources", []string{string(api.SourceOwners), string(api.SourceNode)}, fmt.Sprintf("sources of loans: %s, %s or both", api.SourceOwners, api.SourceNode))
	f.IntVar(&n.blocks, "blocks", 0, fmt.Sprintf("blocks of each policy at each load (default: %d; quick %d)", nodesFull.blocks, nodesQuick.blocks))
	f.IntVar(&n.draws, "draws", 0, fmt.Sprintf("how often, within the blocks, to redeploy the functions in another namespace, so that hash draws new nodes for them; each takes %v (default: %d; quick %d)", placementSetUp, fullDraws, quickDraws))
	f.BoolVar(&n.again, "report-only", false, "measure nothing; rewrite the report of an earlier evaluation from its results in --out")
	return cmd
}

func names[T ~string](of []T) string {
	var all []string
	for _, name := range of {
		all = append(all, string(name))
	}
	return strings.Join(all, ", ")
}

// startNodes checks the flags and the cluster, and runs the evaluation.
func startNodes(ctx context.Context, o options, n nodesOptions, out io.Writer) error {
	d := newDemo(o, out)
	if n.again {
		return reportAgain(d, writeNodes)
	}
	e := newEvaluation(d, namespaceOf(phaseTwoEach, evaluation.Owners))
	e.write = writeNodes
	if err := errors.Join(e.checkNodes(n), d.resolve()); err != nil {
		return err
	}
	if err := d.mayChange(ctx, nil, ""); err != nil {
		return err
	}
	if len(d.workers) < leastWorkers {
		return fmt.Errorf("placement needs at least %d workers, and the box has %d: run make box-down, then make box-up NODES=%d", leastWorkers, len(d.workers), leastWorkers+1)
	}
	return e.run(ctx)
}

// checkNodes checks the flags and makes the plan.
func (e *evaluate) checkNodes(n nodesOptions) error {
	var errs []error
	for _, pods := range n.pods {
		if phaseOf(pods) == "" {
			errs = append(errs, fmt.Errorf("--pods has %d; want 2, 4 or both", pods))
		}
	}
	of := chosen{loads: n.loads, pods: n.pods, draws: fullDraws}
	for _, name := range n.placements {
		p, err := api.ParsePlacement(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("--placements: %w", err))
		}
		of.placements = append(of.placements, p)
	}
	for _, name := range n.sources {
		s, err := api.ParseSource(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("--sources: %w", err))
		}
		of.sources = append(of.sources, s)
	}
	l, limit := nodesFull, nodesTime
	e.pace = fullPace
	if n.quick {
		l, limit, of.draws, e.pace = nodesQuick, quickNodesTime, quickDraws, quickPace
	}
	if n.blocks > 0 {
		l.blocks = n.blocks
	}
	if n.draws < 0 || n.draws > l.blocks {
		errs = append(errs, fmt.Errorf("--draws is %d; it must be 1 to %d, the number of blocks, or 0 for the default", n.draws, l.blocks))
	} else if n.draws > 0 {
		of.draws = n.draws
	}
	of.draws = min(of.draws, l.blocks)
	if e.limit = n.limit; e.limit == 0 {
		e.limit = limit
	}
	errs = append(errs, e.checkCommon(n.loads, n.blocks))
	if e.plan = nodesPlan(l, of); len(e.plan.arms()) == 0 && errors.Join(errs...) == nil {
		errs = append(errs, errors.New("--loads, --pods and --sources leave nothing to measure"))
	}
	return errors.Join(errs...)
}

// phaseOf returns the phase in which functions have this many pods each, or an empty string.
func phaseOf(pods int) string {
	for phase, n := range podsEach {
		if n == pods {
			return phase
		}
	}
	return ""
}

// nodesPlan returns everything that may be measured, in order: all of a draw before the next, so that a lack of
// time cuts only the last draw.
func nodesPlan(l lengths, of chosen) timePlan {
	var p timePlan
	for _, source := range []api.Source{api.SourceOwners, api.SourceNode} {
		if !slices.Contains(of.sources, source) {
			continue
		}
		for draw := 1; draw <= of.draws; draw++ {
			after, last := l.blocks*(draw-1)/of.draws, l.blocks*draw/of.draws
			for _, pods := range []int{2, 4} {
				if slices.Contains(of.pods, pods) {
					p = append(p, phaseOfDraw(draw, pods, l.block, of.loads, turnsOf(after, last, source, of.placements)))
				}
			}
		}
	}
	return p
}

// phaseOfDraw returns the phase of a draw with this many pods of each function: its turns at each load.
func phaseOfDraw(draw, pods int, block time.Duration, loads []int, turns []turn) phase {
	ph := phase{name: phaseOf(pods), draw: draw, setUp: placementSetUp}
	for _, load := range evaluationLoads {
		if slices.Contains(loads, load) {
			ph.combinations = append(ph.combinations, combination{
				part: evaluation.PartPlacement, load: load, pods: pods, length: block, gap: gaps[load] + placementGap, arms: turns})
		}
	}
	return ph
}

// turnsOf returns the blocks of each placement under a source, after block after and up to block last.
func turnsOf(after, last int, source api.Source, among []api.Placement) []turn {
	all := turns(last, rankGoal, placementName(source, api.PlacementHash))
	for _, p := range placementsInOrder {
		if slices.Contains(among, p) && p != api.PlacementHash {
			all = append(all, turn{arm: placementName(source, p), blocks: last, rank: rankOfPlacement(p)})
		}
	}
	all = append(all, turn{arm: againName(source), blocks: last, rank: rankNoise})
	for i := range all {
		all[i].done = after
		if source == api.SourceNode {
			all[i].rank += ranksOfSource
		}
	}
	return all
}

func rankOfPlacement(p api.Placement) int {
	switch p {
	case api.PlacementCoverage:
		return rankGoal
	case api.PlacementRoundRobin, api.PlacementJoinShortest, api.PlacementMinimumWorkerSet:
		return rankPolicies
	default:
		return rankOthers
	}
}

// writeNodes writes the report and prints its tables.
func writeNodes(d *demo, data evaluation.Data) error {
	return evaluation.WritePlacements(d.outDir, d.out, "Placement: which pod a request goes to", data)
}
