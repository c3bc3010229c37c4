package schedule

import "math/rand/v2"

// CorpusBytes is the size of the corpus, and the most that one body takes of it.
const CorpusBytes = 8 << 20

// Corpus is the text that bodies are cut from: words as frequent as words are,
// so that it compresses about as well as text does.
func Corpus() []byte {
	rng := rand.New(rand.NewPCG(0, 0))
	words := make([][]byte, 20_000)
	for i := range words {
		words[i] = make([]byte, 2+rng.IntN(9))
		for j := range words[i] {
			words[i][j] = "etaoinshrdlucmfwypvbgkjqxz"[int(26*rng.Float64()*rng.Float64())]
		}
	}
	frequent := rand.NewZipf(rng, 1.1, 4, uint64(len(words)-1))
	corpus := make([]byte, 0, CorpusBytes+16)
	for len(corpus) < CorpusBytes {
		corpus = append(append(corpus, words[frequent.Uint64()]...), ' ')
	}
	return corpus[:CorpusBytes]
}
