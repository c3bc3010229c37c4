package evaluation

// Names of the policies that the paper has too. NoSafeguard, NoPredictor and NoBoth are
// its LIBRA-NS, LIBRA-NP and LIBRA-NSP.
const (
	NoSafeguard = "no_safeguard"
	NoPredictor = "no_predictor"
	NoBoth      = "neither"
	Freyr       = "freyr"
)

// published is a figure of the paper.
type published struct {
	policy, workload string
	value            float64
	where            string // in the paper
	said             string // as the paper has it
}

// paperP99 is P99 of the response time over the default's. The paper gives its own policy
// against each other one: what these are against the default follows from it. Its sections
// 8.3.1, 8.3.2 and 8.7.
var paperP99 = []published{
	{Libra, Mixed, 0.50, "figure 6(a), section 8.3.1", "50 % below the default"},
	{NoSafeguard, Mixed, 0.50 / 0.85, "figure 6(a), section 8.3.2", "LIBRA is 15 % below it"},
	{NoPredictor, Mixed, 0.50 / 0.70, "figure 6(a), section 8.3.2", "LIBRA is 30 % below it"},
	{NoBoth, Mixed, 0.50 / 0.66, "figure 6(a), section 8.3.2", "LIBRA is 34 % below it"},
	{Freyr, Mixed, 0.50 / 0.61, "figure 6(a), section 8.3.1", "LIBRA is 39 % below it"},
	{Libra, Related, 0.06, "figure 13(b), section 8.7", "the 99th percentile of invocations accelerated by 94 %"},
	{Libra, Unrelated, 0.87, "figure 13(c), section 8.7", "the 99th percentile of invocations accelerated by 13 %"},
}

// paperWorst is the worst slow-down of an invocation.
var paperWorst = []published{
	{Libra, Mixed, 0.02, "figure 6(b), section 8.3.1", "2 % at worst"},
	{NoSafeguard, Mixed, 0.42, "figure 6(b), section 8.3.2", "42 % at worst"},
	{NoPredictor, Mixed, 0.06, "figure 6(b), section 8.3.2", "6 % at worst"},
	{NoBoth, Mixed, 1.97, "figure 6(b), section 8.3.2", "197 % at worst"},
	{Freyr, Mixed, 1.80, "figure 6(b), section 8.3.1", "180 % at worst"},
}

// paperCPU and paperMemory are the mean utilisation over the default's, paperCompletion is
// the time that the workload takes over the default's.
var (
	paperCPU = []published{
		{Libra, Mixed, 3.82, "figure 7, section 8.3.1", "3.82 times the default's"},
		{NoSafeguard, Mixed, 3.82 / 1.21, "figure 7, section 8.3.2", "LIBRA has 1.21 times its"},
		{NoPredictor, Mixed, 3.82 / 1.84, "figure 7, section 8.3.2", "LIBRA has 1.84 times its"},
		{NoBoth, Mixed, 3.82 / 2.05, "figure 7, section 8.3.2", "LIBRA has 2.05 times its"},
		{Freyr, Mixed, 3.82 / 2.93, "figure 7, section 8.3.1", "LIBRA has 2.93 times its"},
	}
	paperMemory = []published{
		{Libra, Mixed, 2.09, "figure 7, section 8.3.1", "2.09 times the default's"},
		{NoSafeguard, Mixed, 2.09 / 1.40, "figure 7, section 8.3.2", "LIBRA has 1.40 times its"},
		{NoPredictor, Mixed, 2.09 / 1.60, "figure 7, section 8.3.2", "LIBRA has 1.60 times its"},
		{NoBoth, Mixed, 2.09 / 2, "figure 7, section 8.3.2", "LIBRA has twice its"},
		{Freyr, Mixed, 2.09 / 2.48, "figure 7, section 8.3.1", "LIBRA has 2.48 times its"},
	}
	paperCompletion = []published{
		{Libra, Mixed, 0.49, "figure 7, section 8.3.1", "51 % faster than the default"},
		{NoSafeguard, Mixed, 0.49 / 0.83, "figure 7, section 8.3.2", "LIBRA is 17 % faster"},
		{NoPredictor, Mixed, 0.49 / 0.70, "figure 7, section 8.3.2", "LIBRA is 30 % faster"},
		{NoBoth, Mixed, 0.49 / 0.58, "figure 7, section 8.3.2", "LIBRA is 42 % faster"},
		{Freyr, Mixed, 0.49 / 0.57, "figure 7, section 8.3.1", "LIBRA is 43 % faster"},
	}
)

// paperOverheads are those of section 8.10, on four nodes of 32 cores. The paper gives MB.
var paperOverheads = []struct {
	part  string
	cores float64
	mb    float64
}{
	{"profiler", 1.0, 268},
	{"scheduler", 0.6, 134},
	{"harvest resource pool", 0.2, 46},
	{"all of them", 1.8, 448},
}

// paperOrder is the order by P99 in figure 6(a), the fastest first.
var paperOrder = []string{Libra, NoSafeguard, NoPredictor, NoBoth, Freyr, Stock}

// inPaper finds a policy's figure.
func inPaper(figures []published, policy, workload string) (published, bool) {
	for _, p := range figures {
		if p.policy == policy && p.workload == workload {
			return p, true
		}
	}
	return published{}, false
}
