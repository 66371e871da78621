    static constexpr bool swap = true;
    static constexpr bool fp16_accumulate = false;
    static constexpr int block_p = 128, block_q = 32, block_k = 128;
    static constexpr kw::Steps epilogue = {};
    static constexpr int split_k = 1;
    static constexpr int stages = 5, subtiles = 1;
    static constexpr int cluster_p = 1, cluster_q = 1;
    static constexpr int raster_group = 8;
    static constexpr bool partials_apart = false;
