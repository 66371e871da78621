// Backtracking with a proof: kernelwright verify examples/applications/sat.cpp --problem expert:sat:4x20x86x4096 --target cpu
#include <cstdlib>
#include <vector>

struct Formula {
    const int* clauses;
    long count, variables;
    long stride;
    std::vector<signed char> value;  // 0 free, 1 true, -1 false
    std::vector<int> trail, proof;

    int of(int literal) const { return literal > 0 ? value[literal] : -value[-literal]; }
    void set(int literal) { value[std::abs(literal)] = literal > 0 ? 1 : -1, trail.push_back(literal); }

    bool propagate() {
        for (bool changed = true; changed;) {
            changed = false;
            for (long c = 0; c < count; c++) {
                int free = 0, last = 0;
                bool satisfied = false;
                for (int k = 0; k < 3; k++) {
                    int literal = clauses[c * stride + k], v = of(literal);
                    satisfied |= v > 0;
                    if (!v && literal != last) free++, last = literal;
                }
                if (satisfied || free > 1) continue;
                if (!free) return false;
                set(last), changed = true;
            }
        }
        return true;
    }

    bool search(std::vector<int>& decisions) {
        size_t before = trail.size();
        if (!decisions.empty()) set(decisions.back());
        if (propagate()) {
            long v = 1;
            while (v <= variables && value[v]) v++;
            if (v > variables) return true;
            for (int sign : {1, -1}) {
                decisions.push_back(sign * int(v));
                if (search(decisions)) return true;
                decisions.pop_back();
            }
        }
        while (trail.size() > before) value[std::abs(trail.back())] = 0, trail.pop_back();
        for (int literal : decisions) proof.push_back(-literal);  // these cannot all hold
        proof.push_back(0);
        return false;
    }
};

extern "C" void kernel(const int* clauses, int* verdict, int* assignment, int* proof, int* proof_length, long batch, long variables,
                       long count, long capacity, long ld_clauses, long, long ld_assignment, long ld_proof, long) {
    for (long b = 0; b < batch; b++) {
        Formula f{clauses + b * count * ld_clauses, count, variables, ld_clauses, std::vector<signed char>(variables + 1), {}, {}};
        std::vector<int> decisions;
        verdict[b] = f.search(decisions);
        for (long v = 0; v < variables; v++) assignment[b * ld_assignment + v] = f.value[v + 1] > 0;
        proof_length[b] = verdict[b] ? 0 : int(f.proof.size());
        for (long i = 0; i < proof_length[b] && i < capacity; i++) proof[b * ld_proof + i] = f.proof[i];
    }
}
