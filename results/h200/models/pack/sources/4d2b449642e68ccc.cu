    static constexpr bool swap = true;
    static constexpr bool fp16_accumulate = false;
    static constexpr int block_p = 64, block_q = 8, block_k = 64;
    static constexpr kw::Steps epilogue = {};
    static constexpr int split_k = 6;
    static constexpr int stages = 11;
    static constexpr Load load = Load::cp_async;
    static constexpr Tails tails = Tails::chunk;
