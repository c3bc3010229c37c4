package report

import "time"

// SlotTime is how long a slot lasts, by the clock of whoever counts. What a part counted in one is one
// field of the slot's hash in Redis, written whole each time: however often it is sent, and in whatever
// order, it counts once.
const SlotTime = time.Minute

// Slots is how many slots make a window, with the one that has not ended.
const Slots = 10

// Keep is for how long Redis has a slot after it was last written.
const Keep = (Slots + 2) * SlotTime

// Slot is a number of SlotTimes since 1970.
type Slot int64

// SlotOf is the slot of a time.
func SlotOf(t time.Time) Slot { return Slot(t.Unix() / int64(SlotTime/time.Second)) }

// Begin is when the slot begins.
func (s Slot) Begin() time.Time { return time.Unix(int64(s)*int64(SlotTime/time.Second), 0) }
