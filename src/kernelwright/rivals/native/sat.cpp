// Learning of clauses from conflicts (Marques-Silva and Sakallah 1996): two watched literals, the first unique implication point, activities
// that fade, phases that are kept, restarts. Every learnt clause goes into the proof: each follows by unit propagation.
#include <algorithm>
#include <cstdlib>
#include <vector>

struct Solver {
    struct Clause {
        long first;
        int size;
    };
    int variables;
    std::vector<int> literals;
    std::vector<Clause> clauses;
    std::vector<std::vector<int>> watched;  // by literal: the clauses to look at when it becomes false
    std::vector<signed char> value, phase, seen;
    std::vector<int> level, reason, trail, limits, proof;
    std::vector<double> activity;
    double bump = 1;
    size_t head = 0;

    explicit Solver(int n)
        : variables(n), watched(2 * n + 2), value(n + 1), phase(n + 1, -1), seen(n + 1), level(n + 1), reason(n + 1, -1), activity(n + 1) {}

    static int index(int literal) { return literal > 0 ? 2 * literal : -2 * literal + 1; }
    int of(int literal) const { return literal > 0 ? value[literal] : -value[-literal]; }

    void set(int literal, int why) {
        int v = std::abs(literal);
        value[v] = literal > 0 ? 1 : -1, level[v] = int(limits.size()), reason[v] = why;
        trail.push_back(literal);
    }

    int add(const std::vector<int>& clause) {  // of two literals or more, those that become false last in front
        int id = int(clauses.size());
        clauses.push_back({long(literals.size()), int(clause.size())});
        literals.insert(literals.end(), clause.begin(), clause.end());
        watched[index(clause[0])].push_back(id), watched[index(clause[1])].push_back(id);
        return id;
    }

    int propagate() {  // the clause that is false; -1 for none
        while (head < trail.size()) {
            int gone = -trail[head++];
            std::vector<int>& list = watched[index(gone)];
            size_t kept = 0;
            for (size_t i = 0; i < list.size(); i++) {
                int id = list[i], size = clauses[id].size;
                int* c = literals.data() + clauses[id].first;
                if (c[0] == gone) std::swap(c[0], c[1]);
                if (of(c[0]) > 0) {
                    list[kept++] = id;
                    continue;
                }
                int other = 2;
                while (other < size && of(c[other]) < 0) other++;
                if (other < size) {
                    std::swap(c[1], c[other]);
                    watched[index(c[1])].push_back(id);
                    continue;
                }
                list[kept++] = id;
                if (of(c[0]) < 0) {
                    while (++i < list.size()) list[kept++] = list[i];
                    list.resize(kept);
                    return id;
                }
                set(c[0], id);
            }
            list.resize(kept);
        }
        return -1;
    }

    void back(int to) {
        if (int(limits.size()) <= to) return;
        for (size_t i = trail.size(); i > size_t(limits[to]);) {
            int v = std::abs(trail[--i]);
            phase[v] = value[v], value[v] = 0;
        }
        trail.resize(limits[to]), limits.resize(to), head = trail.size();
    }

    void learn(int conflict) {
        std::vector<int> clause{0};
        int open = 0, at = int(trail.size()), literal = 0, id = conflict;
        do {
            const Clause& c = clauses[id];
            for (long k = c.first; k < c.first + c.size; k++) {
                int q = literals[k], v = std::abs(q);
                if (q == literal || seen[v] || !level[v]) continue;
                seen[v] = 1, activity[v] += bump;
                if (level[v] == int(limits.size()))
                    open++;
                else
                    clause.push_back(q);
            }
            do literal = trail[--at];
            while (!seen[std::abs(literal)]);
            seen[std::abs(literal)] = 0, id = reason[std::abs(literal)];
        } while (--open);
        clause[0] = -literal;
        for (int q : clause) proof.push_back(q);
        proof.push_back(0);
        int to = 0;
        for (size_t k = 1; k < clause.size(); k++) {
            seen[std::abs(clause[k])] = 0;
            if (level[std::abs(clause[k])] > to) to = level[std::abs(clause[k])], std::swap(clause[1], clause[k]);
        }
        back(to);
        set(clause[0], clause.size() > 1 ? add(clause) : -1);
        if ((bump /= 0.95) > 1e100) {
            for (double& a : activity) a *= 1e-100;
            bump *= 1e-100;
        }
    }

    bool solve(const int* formula, long count) {
        for (long c = 0; c < count; c++) {
            std::vector<int> clause(formula + 3 * c, formula + 3 * c + 3);
            std::sort(clause.begin(), clause.end());
            clause.erase(std::unique(clause.begin(), clause.end()), clause.end());
            if (clause.size() > 1)
                add(clause);
            else if (of(clause[0]) < 0)
                return proof.push_back(0), false;
            else if (!of(clause[0]))
                set(clause[0], -1);
        }
        for (long conflicts = 0, limit = 100, since = 0;;) {
            int conflict = propagate();
            if (conflict >= 0) {
                if (limits.empty()) return proof.push_back(0), false;
                learn(conflict), conflicts++, since++;
                continue;
            }
            if (since >= limit) since = 0, limit += limit / 10, back(0);
            int next = 0;
            for (int v = 1; v <= variables; v++)
                if (!value[v] && (!next || activity[v] > activity[next])) next = v;
            if (!next) return true;
            limits.push_back(int(trail.size()));
            set(phase[next] * next, -1);
        }
    }
};

extern "C" void kernel(const int* clauses, int* verdict, int* assignment, int* proof, int* proof_length, long batch, long variables,
                       long count, long capacity) {
    for (long b = 0; b < batch; b++) {
        Solver solver{int(variables)};
        verdict[b] = solver.solve(clauses + b * count * 3, count);
        for (long v = 0; v < variables; v++) assignment[b * variables + v] = solver.value[v + 1] > 0;
        proof_length[b] = verdict[b] ? 0 : int(solver.proof.size());
        for (long i = 0; i < proof_length[b] && i < capacity; i++) proof[b * capacity + i] = solver.proof[i];
    }
}
