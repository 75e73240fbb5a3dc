/*
 * Release and lease of keys, as spec/key-release.md and spec/approvals.md say: every interleaving of
 * two brokers, two owners, two guests, a clock and an adversary who owns the network and the disks.
 *
 *   spin -a release.pml && gcc -O2 -DSAFETY -DCOLLAPSE -o pan pan.c && ./pan
 *
 * Every step below is one that some party takes by itself; which comes next is the adversary's
 * choice. What was once sent stays sent: a message may arrive at any broker, at any later moment, as
 * often as the adversary likes, or never. spec/model/README.md says which claim each assertion is,
 * and what is left out. A FAULT takes one rule away; a test sees that an assertion finds it.
 */

#define BROKERS 2
#define SHARES 2          /* k: parts that make a key, 2k > n */
#define OWNERS 2          /* each of them must approve */
#define GUESTS 2
#define RUNS 2            /* run ids that guests may use */
#define ALLOWED 1         /* runs of the standing approval */
#ifndef ASKS
#define ASKS 3            /* requests that guests make in all, each to both brokers */
#endif
#ifndef RESTORED
#define RESTORED 1        /* older databases that are put back at the first broker */
#endif
#ifndef TOP
#define TOP 2             /* highest counter of a checkpoint */
#endif
#define LEASE 1
#define CHALLENGE 1       /* ticks for which a challenge is good */
#define APPROVAL_ENDS 1   /* last tick at which approvals count */
#define END 2             /* last tick of the model */
#define NONE 7

#define RELEASE 0
#define RESUME 1
#define RENEWAL 2

/* What a broker's database holds, and its ledger: the ledger has no leases and no challenges. */
typedef Kept {
  bit approved[OWNERS];
  bit revoked;
  bit withdrawn;
  byte begun;             /* runs that count under the approval */
  bit known[RUNS];
  byte lease[RUNS];       /* the ask whose release granted the live lease, or NONE */
  byte ends[RUNS];        /* first tick at which that lease is not good */
  byte anchor[RUNS];      /* counter of the anchored checkpoint */
  byte branch[RUNS];      /* which guest's checkpoint it is: its digest */
  bit burnt[ASKS]         /* challenges that were used */
};

typedef Broker {
  Kept db;
  Kept ledger;
  byte generation         /* of challenges: a database that was made anew has another */
};

typedef Ask {
  byte kind;
  byte guest;
  byte run_id;
  byte lease;             /* of a renewal */
  byte counter;           /* of a renewal: what is to be anchored */
  byte branch;
  byte sent;
  byte generation[BROKERS];
  bit granted[BROKERS];
  bit taken[BROKERS];     /* the guest has this answer */
  byte anchor[BROKERS];   /* what the answer says of the newest checkpoint */
  byte branch_said[BROKERS]
};

typedef Guest {
  byte now_asks;          /* the ask whose answers it awaits, or NONE */
  byte lease;             /* the ask that granted its lease, or NONE */
  byte run_id;
  bit part[BROKERS];
  byte ends[BROKERS];     /* by its own clock */
  bit begun;              /* it opened the data, and trains */
  byte counter;
  byte branch
};

Broker brokers[BROKERS];
Kept copy;                /* an older database of the first broker, that the adversary kept */
bit copied;
Ask asks[ASKS];
Guest guests[GUESTS];
byte made;                /* asks so far */
byte now;
byte sealed_by[RUNS * 3]; /* bits of the branches that sealed this counter */

/* Ghosts: what was true, whatever a database says. */
byte opened;              /* bits of the runs whose data some guest opened */
bit told_revoked[BROKERS], told_withdrawn[BROKERS];
byte runs_begun[BROKERS];
byte newest[BROKERS * RUNS];    /* the ask that got the newest lease */
byte highest[BROKERS * RUNS];
byte anchored_by[BROKERS * RUNS * 3]; /* bits of the branches that a broker anchored at a counter */

byte a, b, g, o, r, c, n, live;

inline approved_here(b_) {
  live = 0;
  o = 0;
  do
  :: o < OWNERS -> live = live + brokers[b_].db.approved[o]; o++
  :: else -> break
  od;
  if
  :: now > APPROVAL_ENDS -> live = 0
  :: else
  fi
}

/* The broker opens a stanza: the moment that every promise about keys is about. */
inline hand_out(b_, i) {
  assert(brokers[b_].ledger.approved[0] && brokers[b_].ledger.approved[1] && now <= APPROVAL_ENDS);  /* C10 */
  assert(!told_revoked[b_]);                                                /* C11 */
  assert(!told_withdrawn[b_]);                                              /* C47 */
  assert(!asks[i].granted[b_]);                                             /* C17 */
  if
  :: !brokers[b_].db.known[asks[i].run_id] ->
     runs_begun[b_]++;
     brokers[b_].db.known[asks[i].run_id] = 1;
     brokers[b_].ledger.known[asks[i].run_id] = 1;
     brokers[b_].db.begun++;
     brokers[b_].ledger.begun++;
     assert(runs_begun[b_] <= ALLOWED)                                      /* C185 */
  :: else
  fi;
  brokers[b_].db.lease[asks[i].run_id] = i;
  brokers[b_].db.ends[asks[i].run_id] = now + LEASE;
  newest[b_ * RUNS + asks[i].run_id] = i;
  asks[i].granted[b_] = 1;
  asks[i].anchor[b_] = brokers[b_].db.anchor[asks[i].run_id];
  asks[i].branch_said[b_] = brokers[b_].db.branch[asks[i].run_id]
}

#ifdef FAULT_ANCHOR
#define follows(b_, i, r_) (true)
#else
#define follows(b_, i, r_) (asks[i].counter > brokers[b_].db.anchor[r_] || (asks[i].counter == brokers[b_].db.anchor[r_] && (asks[i].counter == 0 || asks[i].branch == brokers[b_].db.branch[r_])))
#endif

inline renew(b_, i) {
  r = asks[i].run_id;
  assert(!told_revoked[b_] && !told_withdrawn[b_]);                         /* C11, C47 */
  assert(newest[b_ * RUNS + r] == asks[i].lease);                           /* C20, C66: one guest keeps a lease */
  brokers[b_].db.ends[r] = now + LEASE;
  if
  :: asks[i].counter > 0 ->
     assert(asks[i].counter >= highest[b_ * RUNS + r]);                     /* C20: never back */
     highest[b_ * RUNS + r] = asks[i].counter;
     n = (b_ * RUNS + r) * 3 + asks[i].counter;
     anchored_by[n] = anchored_by[n] | (1 << asks[i].branch);
     assert(anchored_by[n] != 3);                                           /* C20: one checkpoint of a counter */
     brokers[b_].db.anchor[r] = asks[i].counter;
     brokers[b_].db.branch[r] = asks[i].branch;
     brokers[b_].ledger.anchor[r] = asks[i].counter;
     brokers[b_].ledger.branch[r] = asks[i].branch
  :: else
  fi;
  asks[i].granted[b_] = 1
}

#ifdef FAULT_CHALLENGE
#define used(b_, i) (false)
#else
#define used(b_, i) (brokers[b_].db.burnt[i])
#endif

/* An ask arrives at a broker: for the first time, again, late. */
inline arrive(b_, i) {
  if
  :: asks[i].generation[b_] != brokers[b_].generation -> skip               /* challenge-unknown */
  :: asks[i].generation[b_] == brokers[b_].generation && used(b_, i) -> skip /* challenge-replayed */
  :: asks[i].generation[b_] == brokers[b_].generation && !used(b_, i) ->
     brokers[b_].db.burnt[i] = 1;
     approved_here(b_);
     r = asks[i].run_id;
     if
     :: now >= asks[i].sent + CHALLENGE -> skip                             /* challenge-expired */
     :: else ->
        if
        :: live < OWNERS || brokers[b_].db.revoked || brokers[b_].db.withdrawn -> skip
        :: else ->
           if
           :: asks[i].kind == RELEASE && !brokers[b_].db.known[r] && brokers[b_].db.begun < ALLOWED ->
              hand_out(b_, i)
           :: asks[i].kind == RESUME && brokers[b_].db.known[r] ->
#ifdef FAULT_RESUME
              c = brokers[b_].db.lease[r];
              hand_out(b_, i);
              if
              :: c != NONE -> brokers[b_].db.lease[r] = c                   /* the lease before lives on */
              :: else
              fi
#else
              hand_out(b_, i)
#endif
           :: asks[i].kind == RENEWAL && brokers[b_].db.lease[r] == asks[i].lease &&
              now < brokers[b_].db.ends[r] && follows(b_, i, r) -> renew(b_, i)
           :: else -> skip
           fi
        fi
     fi
  fi
}

inline ask(g_, kind_, run_) {
  asks[made].kind = kind_;
  asks[made].guest = g_;
  asks[made].run_id = run_;
  asks[made].sent = now;
  asks[made].lease = (kind_ == RENEWAL -> guests[g_].lease : NONE);
  asks[made].counter = (kind_ == RENEWAL -> guests[g_].counter : 0);
  asks[made].branch = (kind_ == RENEWAL -> guests[g_].branch : 0);
  b = 0;
  do
  :: b < BROKERS -> asks[made].generation[b] = brokers[b].generation; b++
  :: else -> break
  od;
  guests[g_].now_asks = made;
  guests[g_].run_id = run_;
  made++
}

inline forget(g_) {
  guests[g_].begun = 0;
  guests[g_].lease = NONE;
  guests[g_].now_asks = NONE;
  guests[g_].counter = 0;
  guests[g_].branch = 0;
  guests[g_].run_id = 0;
  b = 0;
  do
  :: b < BROKERS -> guests[g_].part[b] = 0; guests[g_].ends[b] = 0; b++
  :: else -> break
  od
}

/* How many leases of the guest are good at a tick, by its own clock. */
inline count_live(g_, tick) {
  live = 0;
  b = 0;
  do
  :: b < BROKERS -> live = live + (guests[g_].part[b] && tick < guests[g_].ends[b] -> 1 : 0); b++
  :: else -> break
  od
}

/* An answer opens for the one who asked, while it still waits for that answer. */
inline take(g_, b_) {
  c = guests[g_].now_asks;
  asks[c].taken[b_] = 1;
  guests[g_].ends[b_] = asks[c].sent + LEASE;
  if
  :: asks[c].kind != RENEWAL -> guests[g_].part[b_] = 1; guests[g_].lease = c
  :: else
  fi
}

/* Both parts are there: the guest opens the data with the checkpoint that the operator's store shows. */
inline begin(g_, shown, of_branch) {
  c = guests[g_].lease;
  n = (asks[c].anchor[0] > asks[c].anchor[1] -> 0 : 1);
  if
  :: shown < asks[c].anchor[n] ||
     (shown == asks[c].anchor[n] && shown > 0 && of_branch != asks[c].branch_said[n]) ->
     forget(g_)                                                             /* an older state, or another */
  :: else ->
     guests[g_].begun = 1;
     guests[g_].now_asks = NONE;
     guests[g_].counter = shown;
     guests[g_].branch = (shown > 0 -> of_branch : g_);
     opened = opened | (1 << guests[g_].run_id);
     assert(opened != 3 || ALLOWED * BROKERS / SHARES > 1);                 /* C185, over all brokers */
     b = 0;
     do
     :: b < BROKERS ->
        assert(shown >= highest[b * RUNS + guests[g_].run_id] || asks[c].anchor[b] < highest[b * RUNS + guests[g_].run_id]);
        b++
     :: else -> break
     od
  fi
}

#ifdef FAULT_DATABASE
inline remake(b_) { skip }
#else
inline remake(b_) {
  /* The database follows the ledger: leases have ended, and challenges are of another generation. */
  brokers[b_].db.approved[0] = brokers[b_].ledger.approved[0];
  brokers[b_].db.approved[1] = brokers[b_].ledger.approved[1];
  brokers[b_].db.revoked = brokers[b_].ledger.revoked;
  brokers[b_].db.withdrawn = brokers[b_].ledger.withdrawn;
  brokers[b_].db.begun = brokers[b_].ledger.begun;
  r = 0;
  do
  :: r < RUNS ->
     brokers[b_].db.known[r] = brokers[b_].ledger.known[r];
     brokers[b_].db.lease[r] = NONE;
     brokers[b_].db.ends[r] = 0;
     brokers[b_].db.anchor[r] = brokers[b_].ledger.anchor[r];
     brokers[b_].db.branch[r] = brokers[b_].ledger.branch[r];
     r++
  :: else -> break
  od;
  brokers[b_].generation = brokers[b_].generation + 1
}
#endif

inline take_over(to, from) {
  to.approved[0] = from.approved[0];
  to.approved[1] = from.approved[1];
  to.revoked = from.revoked;
  to.withdrawn = from.withdrawn;
  to.begun = from.begun;
  r = 0;
  do
  :: r < RUNS ->
     to.known[r] = from.known[r];
     to.lease[r] = from.lease[r];
     to.ends[r] = from.ends[r];
     to.anchor[r] = from.anchor[r];
     to.branch[r] = from.branch[r];
     r++
  :: else -> break
  od;
  a = 0;
  do
  :: a < ASKS -> to.burnt[a] = from.burnt[a]; a++
  :: else -> break
  od
}

inline reset() { a = 0; b = 0; c = 0; g = 0; n = 0; o = 0; r = 0; live = 0 }

inline open(g_, shown, of_branch) {
  count_live(g_, now);
  if
  :: live >= SHARES -> begin(g_, shown, of_branch)
  :: else -> forget(g_)
  fi
}

inline train(g_) {
  count_live(g_, now);
  if
  :: live >= SHARES ->
     guests[g_].counter++;
     guests[g_].branch = g_;                                                /* its own digest from here on */
     n = guests[g_].run_id * 3 + guests[g_].counter;
     sealed_by[n] = sealed_by[n] | (1 << g_)
  :: else
  fi
}

/* A guest measures its lease, and has stopped before the tick at which it ends. */
inline tick() {
  now++;
  g = 0;
  do
  :: g < GUESTS ->
     count_live(g, now);
     if
     :: guests[g].begun && live < SHARES -> forget(g)
     :: else
     fi;
     g++
  :: else -> break
  od
}

/* One step of one party, as one transition. Its first condition says when it can be taken. */
#define STEP(condition, what) :: d_step { (condition) -> what; reset() }
#define AT_EACH(step) step(0) step(1)
#define FOR_EACH(step, x) step(x, 0) step(x, 1)

/* Owners. Their documents are kept by everyone, and arrive whenever the adversary likes. */
#ifdef FAULT_LATER
#define LIFT(b_) brokers[b_].db.revoked = 0; brokers[b_].ledger.revoked = 0
#else
#define LIFT(b_) skip
#endif
#define APPROVE(b_, o_) STEP(true, brokers[b_].db.approved[o_] = 1; brokers[b_].ledger.approved[o_] = 1; LIFT(b_))
#define APPROVALS(b_) FOR_EACH(APPROVE, b_)
#define REVOKE(b_) STEP(!told_revoked[b_], brokers[b_].db.revoked = 1; brokers[b_].ledger.revoked = 1; told_revoked[b_] = 1)
#define WITHDRAW(b_) STEP(!told_withdrawn[b_], brokers[b_].db.withdrawn = 1; brokers[b_].ledger.withdrawn = 1; told_withdrawn[b_] = 1)

/* Guests. By symmetry the first ask is the first guest's. */
#define FIRST STEP(made == 0, forget(0); ask(0, RELEASE, 0))
#define ASK_KEYS(g_, r_) \
  STEP(made > 0 && made < ASKS && !guests[g_].begun, forget(g_); ask(g_, RELEASE, r_)) \
  STEP(made > 0 && made < ASKS && !guests[g_].begun, forget(g_); ask(g_, RESUME, r_))
#define ASKS_KEYS(g_) FOR_EACH(ASK_KEYS, g_)
#define ASK_RENEWAL(g_) STEP(made < ASKS && guests[g_].begun && guests[g_].now_asks == NONE, \
  n = guests[g_].run_id; ask(g_, RENEWAL, n))
#define TAKE(g_, b_) STEP(guests[g_].now_asks != NONE && asks[guests[g_].now_asks & 3].granted[b_] && \
  !asks[guests[g_].now_asks & 3].taken[b_], take(g_, b_))
#define TAKES(g_) FOR_EACH(TAKE, g_)
#define GIVE_UP(g_) STEP(guests[g_].begun && guests[g_].now_asks != NONE, guests[g_].now_asks = NONE)
#define BEGIN(g_, shown, branch_) STEP(!guests[g_].begun && guests[g_].part[0] && guests[g_].part[1] && \
  (shown == 0 || (sealed_by[guests[g_].run_id * 3 + shown] & (1 << branch_))), open(g_, shown, branch_))
#define BEGINS(g_) BEGIN(g_, 0, 0) BEGIN(g_, 1, 0) BEGIN(g_, 1, 1) BEGIN(g_, 2, 0) BEGIN(g_, 2, 1)
#define TRAIN(g_) STEP(guests[g_].begun && guests[g_].counter < TOP, train(g_))
#define HALT(g_) STEP(guests[g_].begun || guests[g_].part[0] || guests[g_].part[1], forget(g_))

/* The network: any ask, at any broker, again and again. */
#define ARRIVE(i, b_) STEP(made > i, arrive(b_, i))
#define ARRIVES(i) FOR_EACH(ARRIVE, i)

init {
  d_step {
    guests[0].now_asks = NONE;
    guests[1].now_asks = NONE;
    guests[0].lease = NONE;
    guests[1].lease = NONE;
    b = 0;
    do
    :: b < BROKERS ->
       r = 0;
       do
       :: r < RUNS -> brokers[b].db.lease[r] = NONE; newest[b * RUNS + r] = NONE; r++
       :: else -> break
       od;
#ifdef START_APPROVED
       brokers[b].db.approved[0] = 1;
       brokers[b].db.approved[1] = 1;
       brokers[b].ledger.approved[0] = 1;
       brokers[b].ledger.approved[1] = 1;
#endif
       b++
    :: else -> break
    od;
    reset()
  }
  do
  AT_EACH(APPROVALS)
#ifndef NO_STOPS
  AT_EACH(REVOKE)
  AT_EACH(WITHDRAW)
#endif
  FIRST
  AT_EACH(ASKS_KEYS)
  AT_EACH(ASK_RENEWAL)
  AT_EACH(TAKES)
  AT_EACH(GIVE_UP)
  AT_EACH(BEGINS)
  AT_EACH(TRAIN)
  AT_EACH(HALT)
  ARRIVES(0)
  ARRIVES(1)
#if ASKS > 2
  ARRIVES(2)
#endif
#if ASKS > 3
  ARRIVES(3)
#endif
#ifndef NO_DISKS
  /* The adversary keeps a copy of a database, and puts it back; the broker starts with it. */
  STEP(!copied, take_over(copy, brokers[0].db); copied = 1)
  STEP(copied && brokers[0].generation < RESTORED, take_over(brokers[0].db, copy); remake(0))
#endif
  STEP(now < END, tick())
  :: now == END -> break
  od
}
