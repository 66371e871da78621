    static constexpr bool p_k_contiguous = true, q_k_contiguous = true;
    static constexpr bool swap = false;
    static constexpr bool fp16_accumulate = false;
    static constexpr int block_p = 16, block_q = 32, block_k = 32;
    static constexpr kw::Steps epilogue = {};
    static constexpr int warps_p = 1, warps_k = 2, batches = 1;
