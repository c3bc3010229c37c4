package inputs

import "math"

// tail is a log-normal distribution of sizes that ends at most; sizes below least become
// least.
type tail struct {
	least, median, most int
	sigma               float64
}

// at returns the size below which a share of the inputs is.
func (t tail) at(share, scale float64) int {
	median := float64(t.median) * scale
	highest := normal(math.Log(float64(t.most)/median) / t.sigma)
	size := median * math.Exp(t.sigma*math.Sqrt2*math.Erfinv(2*share*highest-1))
	return min(max(int(size), t.least), t.most)
}

// normal is the standard normal distribution function.
func normal(x float64) float64 { return (1 + math.Erf(x/math.Sqrt2)) / 2 }
